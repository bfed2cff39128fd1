"""Fresh weights for an architecture.

A mask takes inputs away from every unit, so a network under it needs other initial weights than its
dense parent. What fits depends on what a layer feeds; `choose_schemes` holds the rule.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from aprune.connections import NORMS, weights_of
from aprune.errors import SettingError
from aprune.maths.seed import derive_seed

Scheme = Literal["auto", "normal", "he", "quiet", "he_density", "he_fan_in"]
_QUIET = 0.3  # of the width of He


def initialise(
    model: nn.Module,
    masks: Mapping[str, Tensor] | None = None,
    scheme: Scheme = "auto",
    *,
    seed: int,
    epsilon: float = 0.01,
) -> None:
    """Draw fresh weights in place; those outside `masks` are exactly zero.

    Biases start at zero and norms at the identity. Draws come from a generator of the model's own
    device, seeded with `seed`; the global generators are left alone.

    Args:
        model: The network; every module that can reset itself is reset.
        masks: One boolean tensor a connection, or None for the dense network. Biases and norms may
            be among them; they start as they do without a mask.
        scheme: `normal` draws from N(0, ε²). `he` draws from N(0, 2/n) with n the inputs of a unit in
            the dense parent, `he_density` with n times the layer's density, `he_fan_in` with n the
            inputs that each unit has left. `quiet` draws from N(0, 2/n·min(1, 0.09/density)): what
            a unit gets is never louder than 0.3 times what `he` gives it in the dense parent.
            `auto` chooses between them (see `choose_schemes`).
        seed: Of the draws.
        epsilon: Standard deviation for `normal`.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
        >>> initialise(layer, {"weight": mask}, "he_fan_in", seed=0)
        >>> (layer.weight != 0).tolist() == mask.tolist()
        True
    """
    if scheme not in get_args(Scheme):
        raise SettingError(
            f"unknown initialisation {scheme!r}: expected one of {', '.join(get_args(Scheme))}"
        )
    masks = masks or {}
    parameters = dict(model.named_parameters())
    _check_masks(masks, parameters)
    weights, transposed = weights_of(model), _transposed(model)
    schemes = choose_schemes(model) if scheme == "auto" else {}
    devices = {parameter.device for parameter in parameters.values()}
    own = derive_seed(seed, "weights")
    generators = {device: torch.Generator(device).manual_seed(own) for device in devices}
    _reset(model, seed)
    with torch.no_grad():
        for name, weight in weights.items():
            mask = masks[name].to(weight.device) if name in masks else None
            weight.normal_(generator=generators[weight.device])
            how = schemes.get(name, scheme)
            weight.mul_(_scale(weight, mask, how, epsilon, transposed.get(name)))
        for name, mask in masks.items():
            parameters[name].mul_(mask.to(parameters[name].device))


def choose_schemes(model: nn.Module) -> dict[str, Scheme]:
    """Choose how each connection of `model` is drawn by default.

    In front of a norm the scale of a layer cancels: plain He. Behind the last norm nothing tames it,
    and a layer that starts loud keeps the whole network from learning for long: quiet. Without norms
    nothing else keeps the signal alive through a sparse network: He with the inputs that each unit
    has left. Layers come in the order in which the network names them.

    Example:
        >>> choose_schemes(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
        {'0.weight': 'he_fan_in', '2.weight': 'he_fan_in'}
        >>> choose_schemes(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)))
        {'0.weight': 'he', '2.weight': 'quiet'}
    """
    order = {name: (place, module) for place, (name, module) in enumerate(model.named_modules())}
    norms = [place for place, module in order.values() if isinstance(module, NORMS)]
    if not norms:
        return dict.fromkeys(weights_of(model), "he_fan_in")
    return {
        name: "he" if order[name.rpartition(".")[0]][0] < norms[-1] else "quiet"
        for name in weights_of(model)
    }


class RandomNumbers:
    """Numbers of one's own for whatever draws from the global generators, dropout for one.

    They are taken up each time where they were left, and the global generators know nothing of it. A
    step captured within `resumed` goes on with these numbers whenever it is replayed.

    Example:
        >>> numbers, before = RandomNumbers(torch.device("cpu"), seed=3), torch.get_rng_state()
        >>> with numbers.resumed():
        ...     _ = torch.rand(2)
        >>> torch.equal(before, torch.get_rng_state())
        True
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._gpu: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # before, there are no default generators
            index = torch.cuda.current_device() if device.index is None else device.index
            self._default_gpu = torch.cuda.default_generators[index]
            self._gpu = torch.Generator(device)
        self.seed(seed)

        self._taken_up = False

    def seed(self, seed: int) -> None:
        """Begin anew; what was captured follows."""
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        if self._gpu is not None:
            self._gpu.manual_seed(seed)

    def state(self) -> dict[str, Tensor]:
        """Return where the numbers are, also while they are taken up."""
        here = torch.default_generator.get_state() if self._taken_up else self._cpu
        return {"cpu": here} if self._gpu is None else {"cpu": here, "gpu": self._gpu.get_state()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from where they were; not while they are taken up."""
        torch.Generator().set_state(state["cpu"])  # fails if it is none
        self._cpu = state["cpu"]
        if self._gpu is not None:
            self._gpu.set_state(state["gpu"])

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Let the global generators go on with these numbers for the block."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._cpu)
        self._taken_up = True
        if self._gpu is not None:
            # the state itself changes place, not its numbers: a captured step remembers the state
            before_gpu = self._default_gpu.graphsafe_get_state()
            self._default_gpu.graphsafe_set_state(self._gpu)
        try:
            yield
        finally:
            self._cpu = torch.default_generator.get_state()
            self._taken_up = False
            torch.default_generator.set_state(before)
            if self._gpu is not None:
                self._default_gpu.graphsafe_set_state(before_gpu)


def _check_masks(masks: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    for name, mask in masks.items():
        shape = tuple(parameters[name].shape) if name in parameters else None
        if tuple(mask.shape) != shape:
            there = f"a parameter of shape {shape}" if shape is not None else "no such parameter"
            raise SettingError(
                f"the mask of {name!r} has shape {tuple(mask.shape)}, but the network has {there}: "
                "expected the masks of an architecture of this network"
            )


def _scale(
    weight: Tensor, mask: Tensor | None, scheme: Scheme, epsilon: float, groups: int | None
) -> Tensor | float:
    if scheme == "normal":
        return epsilon
    units = weight.shape[0] if groups is None else groups * weight.shape[1]
    inputs = weight.numel() // units
    usual = math.sqrt(2.0 / inputs)
    if scheme == "quiet":
        return usual * min(1.0, _QUIET / math.sqrt(_density(mask)))
    if mask is None or scheme == "he":
        return usual
    if scheme == "he_density":
        return math.sqrt(2.0 / max(1.0, inputs * _density(mask)))
    return (2.0 / _count_inputs(mask, groups).clamp(min=1).to(weight.dtype)).sqrt()


def _density(mask: Tensor | None) -> float:
    """Return the share of a layer's connections that is there; at least one is."""
    return 1.0 if mask is None else max(1, int(mask.sum())) / mask.numel()


def _count_inputs(mask: Tensor, groups: int | None) -> Tensor:
    """Count the inputs left to the unit of each connection, in a shape that fits the mask."""
    ones = [1] * (mask.dim() - 2)
    if groups is None:
        return mask.flatten(1).sum(1).reshape(-1, 1, *ones)
    # a transposed convolution has its units in the second dimension, a group of inputs at a time
    grouped = mask.reshape(groups, -1, mask.shape[1], mask[0, 0].numel())
    counts = grouped.sum((1, 3), keepdim=True).expand(-1, grouped.shape[1], -1, -1)
    return counts.reshape(*mask.shape[:2], *ones)


def _transposed(model: nn.Module) -> dict[str, int]:
    """Return the number of groups of each transposed convolution, by the name of its weight."""
    return {
        f"{name}.weight".removeprefix("."): module.groups
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvTransposeNd)
    }


def _reset(model: nn.Module, seed: int) -> None:
    """Let every module reset itself, then set biases to zero."""
    with contextlib.ExitStack() as stack:
        for device in {p.device for p in model.parameters()}:
            stack.enter_context(RandomNumbers(device, seed).resumed())
        for module in model.modules():
            if isinstance(module, NORMS) or not _holds_big_weight(module):
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias" or name.endswith("_bias"):
                    nn.init.zeros_(parameter)


def _holds_big_weight(module: nn.Module) -> bool:
    """Linear and convolutional layers are drawn anew right after; resetting 140 M twice is waste."""
    return isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
