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
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from aprune.parents.vgg import VGG
from aprune.training.chunks import Launch, Pass, cut, locate, parts_of
from aprune.training.recipe import Recipe
from aprune.training.shadow import Shadowed, computes_narrowly, trained_parameters

_WARPS = 4  # that share a piece: fewer would need more registers than let many chunks run at once
_LOOKED = 1024  # connections of the sample that a program looks at
_REGISTERS = 80  # of a thread in the update: with more, too few chunks run at once


class Descent(Protocol):
    """What a step of w reads and writes; see `descent.step`."""

    total: int
    places: list[Tensor | None]
    run: int
    chooses_gamma: bool
    gamma: float
    relative: bool
    layer_share: float
    memory: float
    jump: float
    most: float
    floats: Tensor
    counts: Tensor


class Mover(Protocol):
    """What moves w in a search; `descent.search.Search` is one.

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

    @property
    def descent(self) -> Descent:
        """What a step of w reads and writes."""


def obstacle(model: nn.Module) -> str | None:
    """Return what stands against moving the weights of `model` in one pass; None if nothing does.

    Example:
        >>> with torch.device("meta"):
        ...     obstacle(nn.Linear(2, 2))
        'its weights are on meta, not on a GPU'
    """
    weights = [module.get_parameter(leaf) for _, module, leaf in trained_parameters(model)]
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for device in {weight.device for weight in weights}:
        if device.type == "cuda":
            # before this generation there is no bfloat16, and elsewhere nobody has tried
            if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
                return f"the GPU {torch.cuda.get_device_name(device)} is too old, or not NVIDIA's"
        elif not (interpreted and device.type == "cpu"):
            return f"its weights are on {device}, not on a GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if any(weight.dtype != torch.float32 for weight in weights):
        return "not all of its weights are float32"
    if any(torch.empty_like(w, device="meta").stride() != w.stride() for w in weights):
        return "one of its weights does not lie in memory in one piece"
    if len({id(weight) for weight in weights}) < len(weights):
        return "two of its layers share a weight"
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return "its recurrent layer reads weights where nothing can be put in their place"
    return None


class FusedUpdate:
    """SGD or AdamW on all parameters of a network, with clipping and masks, in one pass.

    Args:
        model: The network.
        recipe: Optimiser, clipping and so on.
        masks: Weights that stay at zero where the mask is not set, by name.
        mover: The search whose masks lie over the weights.
        shape: Of the images of a search: where a VGG sees copies of its inputs, they are summed.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        masks: Mapping[str, Tensor] | None = None,
        mover: Mover | None = None,
        shape: tuple[int, int, int] | None = None,
    ) -> None:
        from aprune.training import decide, kernels

        device = next(model.parameters()).device
        self._kernels: ModuleType = kernels
        self._decide: ModuleType = decide
        self._model, self._recipe, self._mover = model, recipe, mover
        copies = VGG.copies(shape) if shape is not None and type(model) is VGG else 1
        narrow = device.type == "cuda" and computes_narrowly(model)
        merged = VGG.copied if mover is not None and VGG.copied in mover.w else None
        self._entries = {
            name: Shadowed.of(
                module,
                leaf,
                recipe,
                w=None if mover is None else mover.w.get(name),
                mask=None if masks is None else masks.get(name),
                copies=copies if name == merged else 1,
                narrow=narrow,
                shares=mover is not None and mover.descent.layer_share > 0,
            )
            for name, module, leaf in trained_parameters(model)
        }
        entries = list(self._entries.values())
        self._device = device
        self.lr = torch.zeros((), device=device)
        self._numbers = torch.zeros(7, device=device)
        self._numbers[kernels.CLIP.value] = 1.0
        self._table = torch.tensor([entry.row() for entry in entries], device=device)
        self._gradients = self._spare = torch.zeros(0, dtype=torch.int64, device=device)
        self._recorded: list[tuple[Tensor, list[int]]] = []
        self._measures, self._updates = cut(entries, device)
        self._shares = torch.zeros(len(entries), device=device)  # by which all w of a tensor move
        # what is small goes first where there is room for both
        beside = 2 if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device, priority=-1) for _ in range(beside)]
        self._sample = self._parts = None
        if mover is not None and mover.descent.layer_share > 0:
            self._parts = parts_of(self._measures, len(entries))
        if mover is not None and mover.descent.chooses_gamma:
            run = mover.descent.run
            self._sample = locate(self._entries, mover.w, mover.descent.places, run)
            room = decide.BINS.value + decide.DIGITS.value
            self._found = torch.zeros(room, dtype=torch.int32, device=device)
            self._ratios = self._found.new_zeros(run * len(self._sample))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[Self]:
        """Let the layers hold the shadows of their weights while the block lasts."""
        with contextlib.ExitStack() as stack:
            if any(entry.copies > 1 for entry in self._entries.values()):
                assert isinstance(self._model, VGG)
                stack.enter_context(self._model.without_copies())
            for entry in self._entries.values():
                entry.module._parameters[entry.name] = entry.leaf
            try:
                yield self
            finally:
                for entry in self._entries.values():
                    entry.module._parameters[entry.name] = entry.theta

    def start(self) -> None:
        """Set all moments to zero."""
        self._numbers[self._kernels.CORRECTION.value :].zero_()
        for entry in self._entries.values():
            entry.first.zero_()
            if entry.second is not None:
                entry.second.zero_()

    def load(self, masks: Mapping[str, Tensor]) -> None:
        """Take over other masks of the same weights, where these are in memory."""
        for number, (name, entry) in enumerate(self._entries.items()):
            if entry.mask is not None:
                entry.mask.copy_(masks[name])
                self._table[number, -1] = entry.is_sparse()
        self.begin()

    def begin(self) -> None:
        """Show the layers the weights as they are now."""
        with torch.no_grad():
            for entry in self._entries.values():
                entry.show(*self._temperatures)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights themselves, of which the layers hold shadows."""
        return {name: entry.theta.detach() for name, entry in self._entries.items()}

    def state(self) -> dict[str, Tensor]:
        """Return moments, and shadows under a mask that moves: anew they would be rounded otherwise."""
        kept = {"numbers": self._numbers}
        for name, entry in self._entries.items():
            parts = {"first": entry.first, "second": entry.second}
            if entry.w is not None:
                parts |= {"shadow": entry.leaf.detach(), "sums": entry.sums}
            kept |= {f"{part}/{name}": t for part, t in parts.items() if t is not None}
        return kept

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state, in place; the weights are there already."""
        self.begin()
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def forget(self) -> None:
        """Forget the gradients."""
        for entry in self._entries.values():
            entry.leaf.grad = None

    @torch.no_grad()
    def move(self) -> None:
        """Measure all gradients, decide how far to go, and go."""
        self._note_gradients()
        moves = self._mover is not None and self._mover.moving
        t_l, t_s = self._temperatures
        recipe = self._recipe

        def measure(launch: Launch) -> None:
            self._kernels.measure[(len(launch.chunks),)](
                self._table, self._gradients, launch.chunks, launch.out, t_l, t_s,
                MOVES=moves, num_warps=_WARPS, **launch.constants,
            )  # fmt: skip

        def update(launch: Launch) -> None:
            self._kernels.update[(len(launch.chunks),)](
                self._table, self._gradients, launch.chunks, self._numbers, self._shares, launch.out,
                t_l, t_s, recipe.momentum, recipe.weight_decay,
                MOVES=moves, NESTEROV=recipe.nesterov, ADAM=recipe.optimiser == "adam",
                num_warps=_WARPS, maxnreg=_REGISTERS, **launch.constants,
            )  # fmt: skip

        chooses = moves and self._sample is not None
        self._go_over(self._measures, measure, *([self._choose_drift] if chooses else []))
        self._decide_numbers(moves)
        if moves and self._parts is not None:
            self._share()
        self._go_over(self._updates, update)

    def settle(self) -> None:
        """Write down where the gradients of the step just recorded are."""
        table, addresses = self._recorded[-1]
        table.copy_(torch.tensor(addresses))

    def active(self) -> int:
        """Return how many connections were on after the last step."""
        return int(self._updates.out.sum())

    @property
    def _temperatures(self) -> tuple[float, float]:
        return (1.0, 1.0) if self._mover is None else (self._mover.t_l, self._mover.t_s)

    def _note_gradients(self) -> None:
        """Tell the kernels where the gradients are.

        A recorded step finds them in the same places whenever it is replayed. So it has a table of its
        own, which is not written by each of them but once, by `settle`. The table is older than the
        recording: what a recording makes is there for a part of it only.
        """
        addresses = [_gradient_of(entry.leaf).data_ptr() for entry in self._entries.values()]
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._gradients = self._spare
            self._recorded.append((self._gradients, addresses))
        else:
            self._gradients = torch.tensor(addresses, device=self._device)
            self._spare = torch.zeros_like(self._gradients)

    def _go_over(
        self, whole: Pass, launch: Callable[[Launch], None], *others: Callable[[], None]
    ) -> None:
        """Do the largest launch of a pass, and beside it the others, and what else there is to do."""
        first, *small = whole.launches

        def launch_small() -> None:
            for one in small:
                launch(one)

        jobs = (*others, launch_small) if small else others
        if self._device.type != "cuda":
            for job in jobs:
                job()
            launch(first)
            return
        here = torch.cuda.current_stream(self._device)
        used = self._streams[: len(jobs)]
        for stream, job in zip(used, jobs, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                job()
        launch(first)
        for stream in used:
            here.wait_stream(stream)

    def _decide_numbers(self, moves: bool) -> None:
        recipe, sums = self._recipe, self._measures.out
        descent = None if self._mover is None else self._mover.descent
        of_w: tuple[Tensor | float, ...] = (self._numbers, self._numbers, 1.0, 0.0, 0.0, 0.0)
        if descent is not None:  # else nothing of it is read
            total = float(descent.total)
            of_w = (
                descent.floats,
                descent.counts,
                total,
                descent.gamma,
                descent.memory,
                descent.jump,
            )
        self._decide.decide[(1,)](
            sums, len(sums), self.lr, self._numbers, recipe.clip or 0.0, *of_w,
            CLIPS=recipe.clip is not None, ADAM=recipe.optimiser == "adam", MOVES=moves,
            RELATIVE=descent is not None and descent.relative,
            CHOOSES=self._sample is not None, BLOCK=8192, num_warps=16,
        )  # fmt: skip

    def _share(self) -> None:
        assert self._mover is not None
        descent = self._mover.descent
        self._decide.share[(len(self._shares),)](
            self._measures.out, self._parts, self._table, self._numbers, descent.floats,
            self._shares, descent.layer_share, descent.most, BLOCK=1024,
        )  # fmt: skip

    def _choose_drift(self) -> None:
        assert self._mover is not None
        assert self._sample is not None
        descent = self._mover.descent
        programs = (-(-len(self._ratios) // _LOOKED),)
        self._decide.look_up[programs](
            self._table, self._gradients, self._sample, self._ratios, self._numbers,
            descent.counts, self._found, len(self._sample), self._mover.t_s,
            RUNS=_LOOKED // descent.run, RUN=descent.run,
        )  # fmt: skip
        self._decide.narrow_down[programs](
            self._ratios, self._numbers, descent.floats, self._found, len(self._ratios),
            BLOCK=_LOOKED,
        )  # fmt: skip


def _gradient_of(leaf: nn.Parameter) -> Tensor:
    """Return the gradient, laid out in memory like what it belongs to and where kernels may read it."""
    gradient = leaf.grad
    if gradient is None:
        leaf.grad = gradient = torch.zeros_like(leaf)
    sides = zip(leaf.shape, leaf.stride(), gradient.stride(), strict=True)
    odd = gradient.data_ptr() % 16 != 0
    if odd or any(side > 1 and mine != its for side, mine, its in sides):
        leaf.grad = gradient = torch.empty_like(leaf).copy_(gradient)
    return gradient
