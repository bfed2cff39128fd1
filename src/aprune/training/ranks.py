"""Several processes that train one network together.

`torchrun` starts them. Each computes with its share of every batch; the gradients are added up over
all, and each takes the same step by itself. So all hold the same weights, masks and random numbers after
every step, which is checked now and then; and the number of processes is no part of the result, but for
rounding (`whole_batch` sees to norms and dropout).

Collectives go through a `Team`. Outside of `joined` that is a team of one, which does nothing.
"""

import contextlib
import contextvars
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from aprune.errors import RankError, SettingError
from aprune.progress import silent
from aprune.training.device import choose_device

_BUCKET = 2**24  # numbers that are added up together
_CHUNK = 2**22  # numbers of which a fingerprint is taken at a time
_SPOKEN = "aprune/spoken"

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train together.

    Attributes:
        rank: The number of this one.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def alone(self) -> bool:
        """Return whether there is no other."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Return whether this is the one that writes files and speaks."""
        return self.rank == 0

    def share(self, number: int) -> slice:
        """Return which of `number` things are this one's.

        Example:
            >>> Team(rank=1, size=3).share(10)
            slice(3, 6, None)
        """
        return slice(self.rank * number // self.size, (self.rank + 1) * number // self.size)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by the sum of those of all processes."""
        if self.alone:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            _call(dist.all_reduce, flat)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def any(self, flag: bool) -> bool:
        """Tell whether anybody says yes."""
        if self.alone:
            return flag
        votes = torch.tensor(int(flag))
        _call(dist.all_reduce, votes)
        return bool(votes)

    def hand_out(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of the first process."""
        for tensor in () if self.alone else tensors:
            whole = tensor.detach().contiguous()
            _call(
                dist.broadcast, whole.view(torch.uint8) if whole.dtype == torch.bool else whole, 0
            )
            tensor.detach().copy_(whole)

    def hand_out_state(self, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return what the first process gave: tensors and what JSON can hold, by name; or None."""
        if self.alone:
            return None if state is None else dict(state)
        about: list[Any] = []
        for name, value in (state or {}).items():
            is_tensor = isinstance(value, Tensor)
            kind = [str(value.dtype).removeprefix("torch."), list(value.shape)] if is_tensor else []
            about.append([name, kind, None if is_tensor else value])
        text = self._hand_out_text(json.dumps(None if state is None else about))
        if (entries := json.loads(text)) is None:
            return None
        received: dict[str, Any] = {}
        for name, kind, value in entries:
            if kind:
                value = torch.empty(kind[1], dtype=getattr(torch, kind[0]))
                if self.first and state is not None:
                    value.copy_(state[name])
                self.hand_out([value])
            received[name] = value
        return received

    def check_same(self, state: Mapping[str, Any], when: str) -> None:
        """Raise a `RankError` unless all processes hold the same bits."""
        if self.alone:
            return
        about = {
            name: fingerprint(value) if isinstance(value, Tensor) else value
            for name, value in state.items()
        }
        text = json.dumps(about, sort_keys=True)
        mine = torch.tensor(fingerprint(torch.tensor(list(text.encode()), dtype=torch.uint8)))
        theirs = mine.clone()
        self.hand_out([theirs])
        differ = torch.zeros(self.size, dtype=torch.int64)
        differ[self.rank] = int(not torch.equal(mine, theirs))
        _call(dist.all_reduce, differ)
        if differ.any():
            odd = int(differ.nonzero()[0])
            raise RankError(
                f"process {odd} of {self.size} holds other numbers than the first one {when}: expected"
                " the same bits everywhere; are versions and devices the same on all machines?"
            )

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first process do the block before the others, so that it fills the caches."""
        if not self.first:
            _call(dist.barrier)
        yield
        if self.first and not self.alone:
            _call(dist.barrier)

    def may_speak(self) -> bool:
        """Tell whether nobody has spoken before: of several complaints the first one counts."""
        if self.alone:
            return True
        with contextlib.suppress(RuntimeError):  # the one who keeps count may be gone
            return int(dist.distributed_c10d._get_default_store().add(_SPOKEN, 1)) == 1
        return True

    def _hand_out_text(self, text: str) -> str:
        octets = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(octets))
        self.hand_out([length])
        whole = octets if self.first else torch.empty(int(length), dtype=torch.uint8)
        self.hand_out([whole])
        return whole.numpy().tobytes().decode()


_ALONE = Team()
_current: contextvars.ContextVar[Team] = contextvars.ContextVar("aprune_team", default=_ALONE)


def current_team() -> Team:
    """Return the team of this process.

    Example:
        >>> current_team()
        Team(rank=0, size=1)
    """
    return _current.get()


def started_size() -> int:
    """Return how many processes `torchrun` has started; 1 without it."""
    return _number("WORLD_SIZE", 1)


def started_rank() -> int:
    """Return the number of this process among them."""
    return _number("RANK", 0)


@contextlib.contextmanager
def joined(device: str | torch.device = "auto") -> Iterator[Team]:
    """Let all processes that `torchrun` has started do the trainings of the block together.

    All of them must do the same in it. Without `torchrun` nothing changes.

    Args:
        device: `auto`, `cpu` or `cuda`; every process of a machine gets a GPU of its own.

    Yields:
        The team; `first` is true in the process that is to write files.

    Raises:
        SettingError: There are fewer GPUs than processes.
        RankError: Within the block, if one of the others ends.

    Example:
        >>> with joined("cpu") as team:
        ...     team.size
        1
    """
    if started_size() == 1:
        yield _ALONE
        return
    gpu = choose_device(device).type == "cuda"
    if gpu:
        local, gpus = _number("LOCAL_RANK", started_rank()), torch.cuda.device_count()
        if local >= gpus:
            raise SettingError(
                f"process {local} of this machine has no GPU, which has {gpus}: start {gpus} with"
                " --nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(local)
    ours = not dist.is_initialized()
    if ours:
        # Parts of PyTorch that are loaded later would hold on to the connections, whose threads then
        # outlive Python itself: the process would end with a crash.
        importlib.import_module("torch._dynamo")
        _call(dist.init_process_group, "cpu:gloo,cuda:nccl" if gpu else "gloo")
    team = Team(dist.get_rank(), dist.get_world_size())
    token = _current.set(team)
    try:
        with contextlib.nullcontext() if team.first else silent():
            yield team
    except BaseException as error:
        error.told_by_another = not team.may_speak()  # type: ignore[attr-defined]
        ours = ours and not gpu  # there it would wait for those who are gone
        raise
    finally:
        _current.reset(token)
        if ours:
            dist.destroy_process_group()


def fingerprint(tensor: Tensor) -> int:
    """Return a number that depends on every bit of a tensor and on its place.

    Example:
        >>> fingerprint(torch.tensor([1.0, 2.0])) == fingerprint(torch.tensor([2.0, 1.0]))
        False
    """
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    width = 4 if len(flat) % 4 == 0 else 1
    numbers = flat.view({4: torch.int32, 1: torch.uint8}[width])
    whole = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for begin, part in enumerate(numbers.split(_CHUNK)):
        places = torch.arange(len(part), device=tensor.device) + begin * _CHUNK
        # odd factors that jump about: equal sums by chance are as rare as can be
        whole += (part.long() * (places * 2654435761 + 1).bitwise_or(1)).sum()
    return int(whole)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Put tensors of one type together, as many as a message is to hold."""
    waiting: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = waiting.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        if sum(one.numel() for one in bucket) >= _BUCKET:
            yield waiting.pop(tensor.dtype)
    yield from waiting.values()


def _call(collective: Callable[..., T], *arguments: Any) -> T:
    try:
        return collective(*arguments)
    except RuntimeError as error:
        raise RankError(
            f"one of the {started_size()} processes has ended or cannot be reached, so the others end"
            " too; the same command goes on from the last state that was written"
        ) from error


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
