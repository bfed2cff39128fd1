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
import re
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError

from aprune.errors import ApruneWarning, FileError
from aprune.files import printable, writing
from aprune.training.ranks import current_team
from aprune.training.state import State, copy_state, is_finite, part_of
from aprune.training.state_file import read_state, write_state

CLAIM = "claim"
"""Name of the file, beside the states of a run, that stands for being at it."""
INTERVAL = 30.0
"""Seconds from one state of a training to the next, at the least."""
SHARE = 0.01
"""Of the time that states may take."""

_KEPT = 2  # states of a training
_STATE = re.compile(r"(?P<key>[0-9a-f]{16})-\d{4,}-\d{10,}\.safetensors")
# Bytes a second of a busy disk, and seconds, before anything was measured.
_SPEED, _LATENCY = 1.5e8, 0.01
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
        found = self._files(training)
        for path in found:
            try:
                load(read_state(path, self.key))
            except torch.OutOfMemoryError:
                raise
            except _DAMAGED:
                way = (
                    "from the beginning" if path == found[-1] else "from what was written before it"
                )
                _warn(f"{printable(path)} is damaged: going on {way}")
            else:
                return True
        return False

    def write(self, training: int, state: State) -> None:
        """Write a state, and let go of what it makes superfluous.

        Raises:
            FileError: It cannot be written. What was there before still is.
        """
        written = self._path(training, state["step"])
        with writing(written) as temporary, temporary.open("wb") as file:
            write_state(file, self.key, state)
        found = self._files(training)
        superfluous = [path for path in found if path > written]  # refused, or this were later too
        superfluous += [path for path in found if path < written][_KEPT - 1 :]
        for number in range(training):
            superfluous += self._files(number)[1:]
        for path in superfluous:
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


def remove_checkpoint(folder: Path, keys: Collection[str] | None = None) -> None:
    """Remove the states of a run, and its folder and the one above it if nothing else is there.

    A claim stays: only who holds it may take it away, or two would believe that the run is theirs.

    Args:
        folder: Where they are.
        keys: Of the runs that are done, as `noting_keys` has them: states of others stay. None removes
            all.
    """
    with contextlib.suppress(OSError):
        for path in () if folder.is_symlink() else list(folder.iterdir()):
            state = _STATE.fullmatch(path.name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != CLAIM and (keys is None or state is None or state["key"] in keys):
                path.unlink()
        folder.rmdir()
        folder.parent.rmdir()


_noted: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
    "aprune_checkpoint_keys", default=None
)


@contextlib.contextmanager
def noting_keys() -> Iterator[set[str]]:
    """Collect the keys of the runs whose states are kept within the block."""
    keys: set[str] = set()
    token = _noted.set(keys)
    try:
        yield keys
    finally:
        _noted.reset(token)


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
    checkpoint, keys = Checkpoint(folder, describe()), _noted.get()
    if keys is not None:
        keys.add(checkpoint.key)
    token = _current.set(checkpoint)
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
        self._last = time.monotonic()

    @classmethod
    def of(cls, training: Resumable) -> Self:
        """Keep the next training of the run that is under way, if it is to be kept."""
        return cls(training, _current.get())

    def _resume(self, checkpoint: Checkpoint) -> bool:
        """Go on from where it was stopped; the first of several processes knows where that is."""
        taken: State | None = None

        def load(state: State) -> None:
            nonlocal taken
            fresh = copy_state(self._training.state())
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

        When a training is done soon after its last state, or after its begin, what came since is not
        kept, but done again.
        """
        if self._checkpoint is None or not self._team.first:
            return
        clock = time.monotonic()
        interval = 0.0 if self._training.done else INTERVAL
        due = clock - self._last >= max(interval, self._cost * self._beside / SHARE)
        if (due or now) and self._written != self._training.step:
            state = self._training.state()
            if not is_finite(part_of(state, "model")):
                return  # the last good one is worth more
            self._checkpoint.try_to_write(self._number, state)
            self._written, self._last = self._training.step, time.monotonic()
            self._cost = self._last - clock


def _warn(text: str) -> None:
    warnings.warn(text, ApruneWarning, stacklevel=2)
