"""Trainings that can be stopped at any step and go on as if nothing had happened.

A run, which is a search or a retraining, consists of trainings, numbered as they come. Their states are
written now and then. When the run is started again, what lies between its trainings is done again, since
it follows from the seed and from how they end; a training that was done is read, and the one that was
under way goes on from its last state.

A state is a safetensors file, `KEY-TRAINING-STEP.safetensors`, without any pickle. The key stands for
all that determines the run, so that no run takes up the state of another. A large state goes to disk
tensor by tensor, and needs no memory of its own.
"""

import contextlib
import contextvars
import hashlib
import json
import shutil
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, BinaryIO, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aprune.errors import ApruneError, ApruneWarning, FileError
from aprune.files import check_ordinary, printable, writing
from aprune.tensor_file import octets_of, pieces_of
from aprune.training.ranks import current_team

INTERVAL = 30.0
"""Seconds from one state of a training to the next, at the least."""
SHARE = 0.01
"""Of the time that states on the way may take, and as much for those of trainings that are done."""

State = dict[str, Any]
"""Tensors, and what JSON can hold, by name."""

_FORMAT, _VERSION = "aprune.checkpoint", "1"
_KEPT = 2  # states of a training
_SPEED, _LATENCY = 5e8, 0.01  # bytes a second, and seconds, before anything was measured
_CHUNK = 2**24  # bytes
_TO_CHECKSUM = b'{"__metadata__":{"checksum":"'
_NO_CHECKSUM = "0" * 8
# What reading something damaged, or of another network, can end in.
_DAMAGED = (
    *(SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError),
    *(RuntimeError, OverflowError),
)


class Resumable(Protocol):
    """What can be stopped and taken up again; a `Training` is."""

    step: int

    @property
    def done(self) -> bool:
        """Whether there is no step left."""

    def size(self) -> int:
        """Return about how many bytes its state takes."""

    def state(self) -> State:
        """Return all that what is to come depends on: the tensors in use, not copies."""

    def load_state(self, state: State) -> None:
        """Go on from a state.

        Raises:
            ValueError: It is no state of this training, of which parts may now be there. Other errors
                are possible where somebody has made one up.
        """


class Checkpoint:
    """The states of one run, in a folder of its own.

    Args:
        folder: Where they are; it is made with the first.
        description: All that determines the run, as JSON can hold it.

    Example:
        >>> import tempfile
        >>> place = tempfile.mkdtemp()
        >>> Checkpoint(place, {"seed": 0}).write(0, {"step": 5, "weight": torch.ones(2)})
        >>> Checkpoint(place, {"seed": 0}).resume(0, print)
        {'step': 5, 'weight': tensor([1., 1.])}
        True
        >>> Checkpoint(place, {"seed": 1}).resume(0, print)
        False
    """

    def __init__(self, folder: Path | str, description: Mapping[str, Any]) -> None:
        about = {"torch": torch.__version__, "run": description}
        text = json.dumps(about, sort_keys=True, default=str)
        self.folder = Path(folder)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.trainings = 0
        self._complained = False

    def resume(self, training: int, load: Callable[[State], None]) -> bool:
        """Let a training go on from its newest sound state, if there is one; say which are not."""
        for path in self._files(training):
            try:
                load(_read(path, self.key))
            except torch.OutOfMemoryError:
                raise
            except _DAMAGED:
                _warn(f"{printable(path)} is damaged: going on from what was written before it")
            else:
                return True
        return False

    def write(self, training: int, state: State) -> None:
        """Write a state, and let go of what it makes superfluous.

        Raises:
            FileError: It cannot be written. What was there before still is.
        """
        with (
            writing(self._path(training, state["step"])) as temporary,
            temporary.open("wb") as file,
        ):
            _write(file, self.key, state)
        for number in range(training + 1):
            for path in self._files(number)[_KEPT if number == training else 1 :]:
                with contextlib.suppress(OSError):  # a folder, or gone already
                    path.unlink()

    def try_to_write(self, training: int, state: State) -> None:
        """Write a state, or say once why that is not possible: the work itself can go on."""
        try:
            self.write(training, state)
        except FileError as error:
            if not self._complained:
                self._complained = True
                reason = str(error).rpartition("; ")[0]
                _warn(f"{reason}; the work goes on, but may not be resumed from here")

    def _path(self, training: int, step: int) -> Path:
        return self.folder / f"{self.key}-{training:04}-{step:010}.safetensors"

    def _files(self, training: int) -> list[Path]:
        found = self.folder.glob(f"{self.key}-{training:04}-*.safetensors")
        return sorted(found, reverse=True)


def remove_checkpoint(folder: Path) -> None:
    """Remove the folder of a run, and the one above it if nothing else is there."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


_current: contextvars.ContextVar[Checkpoint | None] = contextvars.ContextVar(
    "aprune_checkpoint", default=None
)


@contextlib.contextmanager
def checkpointed(
    folder: Path | str | None, describe: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
    """Let the trainings of the block, one after another, be those of one run.

    Args:
        folder: For their states; None leaves everything as it is.
        describe: Returns all that determines the run.
    """
    if folder is None:
        yield
        return
    token = _current.set(Checkpoint(folder, describe()))
    try:
        yield
    finally:
        _current.reset(token)


class Keeper:
    """Takes up a training where it was stopped, and writes its state now and then.

    Args:
        training: What to keep.
        checkpoint: Where; None does nothing at all.
        beside: How many trainings take turns: a state of one holds all of them up.
    """

    def __init__(self, training: Resumable, checkpoint: Checkpoint | None, beside: int = 1) -> None:
        self._training, self._checkpoint, self._beside = training, checkpoint, beside
        self._team = current_team()
        self._written = -1  # the last step of which there is a state
        if checkpoint is None:
            return
        self._number, checkpoint.trainings = checkpoint.trainings, checkpoint.trainings + 1
        if self._resume(checkpoint):
            self._written = training.step
        self._cost = _LATENCY + training.size() / _SPEED
        self._begin = self._last = time.monotonic()

    @classmethod
    def of(cls, training: Resumable) -> Self:
        """Keep the next training of the run that is under way, if it is to be kept."""
        return cls(training, _current.get())

    def _resume(self, checkpoint: Checkpoint) -> bool:
        """Go on from where it was stopped; the first of several processes knows where that is."""
        taken: State | None = None

        def load(state: State) -> None:
            nonlocal taken
            fresh = _copy(self._training.state())
            try:
                self._training.load_state(state)
            except BaseException:
                self._training.load_state(fresh)  # as if nothing had been read
                raise
            taken = state

        if self._team.first:
            checkpoint.resume(self._number, load)
        handed = self._team.hand_out_state(taken)
        if handed is not None and not self._team.first:
            self._training.load_state(handed)
        return handed is not None

    @property
    def active(self) -> bool:
        """Return whether anything is kept."""
        return self._checkpoint is not None

    def look(self, *, now: bool = False) -> None:
        """Write the state if it is time, or at once; to be called between two steps.

        A training that was too short for the cost of it is not kept when it is done, but done again.
        """
        if self._checkpoint is None or not self._team.first:
            return
        wait = self._cost * self._beside / SHARE
        clock = time.monotonic()
        if self._training.done:
            due = self._written >= 0 or clock - self._begin >= wait
        else:
            due = clock - self._last >= max(INTERVAL, wait)
        if (due or now) and self._written != self._training.step:
            state = self._training.state()
            if not is_finite(part_of(state, "model")):
                return  # the last good one is worth more
            self._checkpoint.try_to_write(self._number, state)
            self._written, self._last = self._training.step, time.monotonic()
            self._cost = self._last - clock


class Signals:
    """Holds Ctrl-C and SIGTERM back while a step is done, so that its state can be written first.

    Whoever had asked for them gets them after all, by `deliver` or when the block ends. Who asks a
    second time is not kept waiting.

    Args:
        active: Whether to do that; otherwise signals come as they come.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._pending: int | None = None

    @property
    def pending(self) -> bool:
        """Return whether a signal has come."""
        return self._pending is not None

    def expect(self) -> None:
        """Act as if asked to end, since another process was."""
        if self._active and self._pending is None:
            self._pending = signal.SIGTERM

    def deliver(self) -> None:
        """Pass on a signal that has come."""
        if self._pending is None:
            return
        number, self._pending = self._pending, None
        self._restore()
        signal.raise_signal(number)
        self._install()  # whoever got it wants to go on

    def __enter__(self) -> Self:
        """Take the place of those who get signals."""
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give their place back, and what has come, unless there is something worse to tell."""
        self._restore()
        if self._pending is not None and not isinstance(error, ApruneError):
            signal.raise_signal(self._pending)

    def _install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM) if self._active else ():
            before = signal.getsignal(number)
            if before is not None and before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)

    def _restore(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._pending is None:
            self._pending = number
        else:
            self._restore()
            signal.raise_signal(number)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the names, shapes and numbers of some tensors.

    Example:
        >>> digest({"weight": torch.ones(2)}) == digest({"weight": torch.zeros(2)})
        False
    """
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        whole.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        whole.update(octets_of(tensor))
    return whole.hexdigest()


def with_prefix(prefix: str, state: Mapping[str, Any]) -> State:
    """Put a word in front of all names.

    Example:
        >>> with_prefix("model", {"weight": 1})
        {'model/weight': 1}
    """
    return {f"{prefix}/{name}": value for name, value in state.items()}


def part_of(state: Mapping[str, Any], prefix: str) -> State:
    """Undo `with_prefix`.

    Example:
        >>> part_of({"model/weight": 1, "step": 2}, "model")
        {'weight': 1}
    """
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in state.items() if name.startswith(start)}


def check_alike(saved: Mapping[str, Any], mine: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless there are tensors of the same names and shapes.

    Example:
        >>> check_alike({"weight": torch.ones(2)}, {"weight": torch.zeros(3)})
        Traceback (most recent call last):
        ValueError: the state of another network
    """
    kept = {name: value.shape for name, value in saved.items() if isinstance(value, Tensor)}
    if len(kept) < len(saved) or kept != {name: value.shape for name, value in mine.items()}:
        raise ValueError("the state of another network")


def check_same(mine: State, saved: State) -> None:
    """Raise a `ValueError` unless two states are the same, to the last bit.

    Whoever goes on from a state and is then in another has been given something made up.

    Example:
        >>> check_same({"step": 5, "weight": torch.ones(2)}, {"step": 5, "weight": torch.ones(2)})
        >>> check_same({"weight": torch.ones(2)}, {"weight": torch.ones(1)})
        Traceback (most recent call last):
        ValueError: not a state that this training can be in
    """
    if mine.keys() != saved.keys() or not all(_is_same(mine[name], saved[name]) for name in mine):
        raise ValueError("not a state that this training can be in")


def _is_same(mine: Any, saved: Any) -> bool:
    if not isinstance(mine, Tensor) or not isinstance(saved, Tensor):
        return type(mine) is type(saved) and bool(mine == saved)
    if mine.dtype != saved.dtype or mine.shape != saved.shape:
        return False
    ours, theirs = (t.detach().to(mine.device).contiguous().view(-1) for t in (mine, saved))
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def _copy(state: State) -> State:
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _write(file: BinaryIO, key: str, state: State) -> None:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in state.items() if name not in tensors}
    metadata = {
        "checksum": _NO_CHECKSUM,  # of all the other bytes, and known when they are written
        "format": _FORMAT,
        "version": _VERSION,
        "key": key,
        "state": json.dumps(rest),
    }
    pieces = pieces_of(metadata, tensors)
    file.write(head := next(pieces))
    checksum = _checksum_of_header(head[8:])
    for octets in pieces:
        checksum = zlib.crc32(octets, checksum)
        file.write(octets)
    file.seek(8 + len(_TO_CHECKSUM))
    file.write(f"{checksum:08x}".encode())


def _read(path: Path, key: str) -> State:
    check_ordinary(path)
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError("a header longer than the file")
        text = raw.read(size)
        checksum = _checksum_of_header(text)
        while chunk := raw.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        expected = {
            "checksum": f"{checksum:08x}",
            "format": _FORMAT,
            "version": _VERSION,
            "key": key,
        }
        if {name: metadata[name] for name in expected} != expected:
            raise ValueError("not what was written")
        state = dict(json.loads(metadata["state"]))
        # a copy: the tensors of a mapped file would die with it if somebody cut it short
        return state | {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _checksum_of_header(text: bytes) -> int:
    begin = len(_TO_CHECKSUM)
    return zlib.crc32(text[begin + len(_NO_CHECKSUM) :], zlib.crc32(text[:begin]))


def is_finite(state: State) -> bool:
    """Tell whether all numbers of all tensors are finite.

    Example:
        >>> is_finite({"step": 3, "weight": torch.tensor([1.0, torch.nan])})
        False
    """
    tensors = (value for value in state.values() if isinstance(value, Tensor))
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _warn(text: str) -> None:
    warnings.warn(text, ApruneWarning, stacklevel=2)
