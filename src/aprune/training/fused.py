"""A whole update in one pass over the weights: clipping, optimiser, mask and its descent together.

The layers of the network do not see θ but a shadow of it: the masked weight in the precision that they
compute with, written by the pass that moves θ. So a mask costs no pass of its own, neither forward nor
backward, and its gradient is never written to memory: with g the gradient of the shadow,

    ∂L/∂θ = g·σ(t_l·w)          ∂L/∂w = g·θ·t_s·σ′(t_s·w)

are formed where they are used. Clipping and the step size of w need sums over the whole network first,
so the gradients are read twice.

It does what `PlainUpdate`, `KeepMasked` and the parametrised search do, within rounding.
"""

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn

from aprune.maths.relaxation import cold_mask
from aprune.parents.vgg import VGG
from aprune.training.recipe import Recipe

_BLOCK = 2048  # connections of a chunk
_UNITS = 32  # inputs of a chunk where each has several copies
_NARROW = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers that autocast runs in bfloat16


class Mover(Protocol):
    """What moves w in a search; `methods.attached.Search` is one.

    Attributes:
        w: The mask parameters, by the name of the weight.
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
    """

    w: dict[str, Tensor]
    t_l: float
    t_s: float

    @property
    def moving(self) -> bool:
        """Whether the coming steps move w."""

    def places(self) -> list[tuple[Tensor, ...] | None] | None:
        """Where a step looks at w before it decides, for each tensor; None if it does not."""

    def decide(self, square: Tensor, sample: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return step size and drift from the sum of squares of w's gradient and from a sample."""


def can_fuse(device: torch.device) -> bool:
    """Tell whether there is a Triton to run on `device`.

    Example:
        >>> can_fuse(torch.device("meta"))
        False
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and device.type == "cpu"
    there = importlib.util.find_spec("triton") is not None
    return there and (device.type == "cuda" or interpreted)


@dataclass
class _Entry:
    """One tensor of the network, and all that goes with it."""

    theta: nn.Parameter
    leaf: nn.Parameter  # what the layer uses: the shadow, or θ itself
    w: Tensor | None
    mask: Tensor | None
    first: Tensor
    second: Tensor | None
    copies: int

    @property
    def has_shadow(self) -> bool:
        return self.leaf is not self.theta

    def row(self) -> list[int]:
        leaf = self.leaf
        return [
            self.theta.data_ptr(),
            self.first.data_ptr(),
            0 if self.second is None else self.second.data_ptr(),
            0 if self.w is None else self.w.data_ptr(),
            0 if self.mask is None else self.mask.data_ptr(),
            leaf.data_ptr() if self.has_shadow else 0,
            self.theta.numel(),
            int(leaf.dtype == torch.bfloat16),
            int(leaf.dtype == torch.bfloat16),
            self.copies,
        ]


class FusedUpdate:
    """SGD or AdamW on all parameters of a network, with clipping and masks, in one pass.

    Made by `fused`, which also puts the shadows in place.
    """

    def __init__(
        self,
        entries: list[_Entry],
        names: list[str],
        recipe: Recipe,
        mover: Mover | None,
    ) -> None:
        from aprune.training import kernels

        self._kernels: ModuleType = kernels
        self._entries, self._recipe, self._mover = entries, recipe, mover
        device = entries[0].theta.device
        self._device = device
        self.lr = torch.zeros((), device=device)
        self._steps = torch.zeros((), device=device)
        self._numbers = torch.ones(6, device=device)
        self._table = torch.tensor([entry.row() for entry in entries], device=device)
        self._gradients = torch.zeros(len(entries), dtype=torch.int64, device=device)
        self._addresses = torch.zeros(len(entries), dtype=torch.int64)
        self._launches = _cut(entries, device)
        programs = sum(len(launch.chunks) for launch in self._launches)
        self._squares = torch.zeros((programs, 2), device=device)
        self._active = torch.zeros(programs, dtype=torch.int32, device=device)
        self._sample = _locate(entries, names, mover, device)

    def begin(self) -> None:
        """Show the layers the weights as they are now."""
        with torch.no_grad():
            for entry in self._entries:
                _show(entry, 1.0 if self._mover is None else self._mover.t_l)

    def forget(self) -> None:
        """Forget the gradients."""
        for entry in self._entries:
            entry.leaf.grad = None

    @torch.no_grad()
    def move(self) -> None:
        """Measure all gradients, decide how far to go, and go."""
        self._note_gradients()
        mover = self._mover if self._mover is not None and self._mover.moving else None
        t_l, t_s = (1.0, 1.0) if self._mover is None else (self._mover.t_l, self._mover.t_s)
        first = 0
        for launch in self._launches:
            last = first + len(launch.chunks)
            self._kernels.measure[(len(launch.chunks),)](
                self._table, self._gradients, launch.chunks, self._squares[first:last], t_l, t_s,
                MOVES=mover is not None, **launch.shape,
            )  # fmt: skip
            first = last
        squares = self._squares.sum(0)
        self._decide(squares, mover)
        recipe, first = self._recipe, 0
        for launch in self._launches:
            last = first + len(launch.chunks)
            self._kernels.update[(len(launch.chunks),)](
                self._table, self._gradients, launch.chunks, self._active[first:last],
                self._numbers, t_l, t_s, recipe.momentum, recipe.weight_decay,
                MOVES=mover is not None, NESTEROV=recipe.nesterov, ADAM=recipe.optimiser == "adam",
                **launch.shape,
            )  # fmt: skip
            first = last

    def _note_gradients(self) -> None:
        """Tell the device where the gradients are.

        In a recording that copy is part of the graph and reads `_addresses` at each replay: so each
        recording has its own, made by the step before it, and nobody writes to it afterwards.
        """
        recording = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if not recording:
            self._addresses = torch.zeros_like(
                self._addresses, pin_memory=self._device.type == "cuda"
            )
        for number, entry in enumerate(self._entries):
            self._addresses[number] = _gradient_of(entry.leaf).data_ptr()
        self._gradients.copy_(self._addresses, non_blocking=True)

    def _decide(self, squares: Tensor, mover: Mover | None) -> None:
        numbers = self._numbers
        numbers[0] = self.lr
        if self._recipe.clip is not None:
            numbers[1] = (self._recipe.clip / (squares[0].sqrt() + 1e-6)).clamp(max=1.0)
        if mover is not None:
            numbers[2], numbers[3] = mover.decide(squares[1], self._look())
        if self._recipe.optimiser == "adam":
            self._steps += 1
            numbers[4] = 1 - 0.9**self._steps
            numbers[5] = (1 - 0.999**self._steps).sqrt()

    def _look(self) -> tuple[Tensor, Tensor] | None:
        if self._sample is None:
            return None
        assert self._mover is not None
        number = len(self._sample)
        here, slope = torch.empty((2, number), device=self._device)
        self._kernels.look_up[(-(-number // 1024),)](
            self._table, self._gradients, self._sample, here, slope, number, self._mover.t_s,
            BLOCK=1024,
        )  # fmt: skip
        return here, slope


@contextlib.contextmanager
def fused(
    model: nn.Module,
    recipe: Recipe,
    *,
    masks: Mapping[str, Tensor] | None = None,
    mover: Mover | None = None,
    copies: int = 1,
) -> Iterator[FusedUpdate]:
    """Train the network `model` with a `FusedUpdate` for the block.

    Args:
        model: The network; while the block lasts its layers hold shadows of their weights.
        recipe: Optimiser, clipping and so on.
        masks: Weights that stay at zero where the mask is not set, by name.
        mover: The search whose masks lie over the weights.
        copies: How many copies of each input a VGG's first linear layer sees; they are summed.
    """
    entries, names, places = [], [], {}
    for prefix, module in model.named_modules():
        for leaf, theta in module.named_parameters(recurse=False):
            if theta.requires_grad:
                name = f"{prefix}.{leaf}" if prefix else leaf
                several = copies if name == "classifier.0.weight" and mover is not None else 1
                w = None if mover is None else mover.w.get(name)
                mask = None if masks is None else masks.get(name)
                entries.append(_enter(module, theta, w, mask, recipe, several))
                names.append(name)
                places[name] = (module, leaf)
    before = None
    if mover is not None and copies > 1:
        assert isinstance(model, VGG)
        before = (model.avgpool, model.classifier[0])
        model.avgpool = nn.Identity()
    try:
        for name, entry in zip(names, entries, strict=True):
            module, leaf = places[name]
            module._parameters[leaf] = entry.leaf
        yield FusedUpdate(entries, names, recipe, mover)
    finally:
        for name, entry in zip(names, entries, strict=True):
            module, leaf = places[name]
            module._parameters[leaf] = entry.theta
        if before is not None:
            model.avgpool = before[0]


def _enter(
    module: nn.Module,
    theta: nn.Parameter,
    w: Tensor | None,
    mask: Tensor | None,
    recipe: Recipe,
    copies: int,
) -> _Entry:
    narrow = theta.is_cuda and theta.dim() >= 2 and type(module) in _NARROW
    leaf = theta
    if w is not None or narrow:
        shape = theta if copies == 1 else theta[:, : theta.shape[1] // copies].contiguous()
        leaf = nn.Parameter(torch.empty_like(shape, dtype=torch.bfloat16 if narrow else None))
    with torch.no_grad():
        return _Entry(
            theta,
            leaf,
            w,
            None if mask is None else torch.empty_like(theta, dtype=torch.uint8).copy_(mask),
            torch.zeros_like(theta),
            torch.zeros_like(theta) if recipe.optimiser == "adam" else None,
            copies,
        )


def _gradient_of(leaf: nn.Parameter) -> Tensor:
    """Return the gradient, laid out in memory like what it belongs to."""
    gradient = leaf.grad
    if gradient is None:
        leaf.grad = gradient = torch.zeros_like(leaf)
    sides = zip(leaf.shape, leaf.stride(), gradient.stride(), strict=True)
    if any(side > 1 and mine != its for side, mine, its in sides):
        leaf.grad = gradient = torch.empty_like(leaf).copy_(gradient)
    return gradient


def _show(entry: _Entry, t_l: float) -> None:
    if entry.mask is not None:
        entry.theta.mul_(entry.mask)
    if entry.leaf is entry.theta:
        return
    shown = entry.theta if entry.w is None else entry.theta * cold_mask(entry.w, t_l)
    if entry.copies > 1:
        shown = shown.view(len(shown), -1, entry.copies).sum(-1)
    entry.leaf.copy_(shown)


@dataclass
class _Launch:
    """Chunks that one launch goes over, and what they have in common."""

    chunks: Tensor
    shape: dict[str, int | bool]


def _cut(entries: list[_Entry], device: torch.device) -> list[_Launch]:
    """Cut all tensors into chunks: whole ones, the rests, and those of layers with merged inputs."""
    whole, rests, merged, width = [], [], [], 1
    for number, entry in enumerate(entries):
        total = entry.theta.numel()
        if entry.copies > 1:
            inputs = total // entry.copies
            merged += [(number, chunk) for chunk in range(-(-inputs // _UNITS))]
            width = 1 << (entry.copies - 1).bit_length()
            continue
        whole += [(number, chunk) for chunk in range(total // _BLOCK)]
        rests += [(number, total // _BLOCK)] if total % _BLOCK else []
    kinds = (
        (whole, {"EVEN": True, "MERGED": False, "BLOCK": _BLOCK, "WIDTH": 1}),
        (rests, {"EVEN": False, "MERGED": False, "BLOCK": _BLOCK, "WIDTH": 1}),
        (merged, {"EVEN": False, "MERGED": True, "BLOCK": _UNITS, "WIDTH": width}),
    )
    return [
        _Launch(torch.tensor(chunks, dtype=torch.int32, device=device), shape)
        for chunks, shape in kinds
        if chunks
    ]


def _locate(
    entries: list[_Entry], names: list[str], mover: Mover | None, device: torch.device
) -> Tensor | None:
    """Return the places that a search looks at: tensor, offset in it and in its gradient."""
    places = mover.places() if mover is not None else None
    if mover is None or places is None:
        return None
    found = []
    for name, here in zip(mover.w, places, strict=True):
        number = names.index(name)
        entry, w = entries[number], mover.w[name]
        if here is None:
            here = torch.unravel_index(torch.arange(w.numel(), device=device), w.shape)
        pairs = zip(here, entry.theta.stride(), strict=True)
        offset = sum((index * stride for index, stride in pairs), torch.zeros_like(here[0]))
        found.append(
            torch.stack([torch.full_like(offset, number), offset, offset // entry.copies], 1)
        )
    return torch.cat(found).contiguous()
