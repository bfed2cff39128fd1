"""Fresh weights for an architecture.

A mask takes inputs away from every unit, so a network under it needs other initial weights than its
dense parent. What fits depends on what a layer feeds; `choose_schemes` holds the rule.
"""

import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from aprune.connections import NORMS, find_connections, has_norm
from aprune.errors import SettingError

Scheme = Literal["auto", "normal", "he", "he_density", "he_fan_in"]


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
        masks: One boolean tensor a connection, or None for the dense network.
        scheme: `normal` draws from N(0, ε²). `he` draws from N(0, 2/n) with n the inputs of a unit in
            the dense parent, `he_density` with n times the layer's density, `he_fan_in` with n the
            inputs that each unit has left. `auto` chooses between them (see `choose_schemes`).
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
    connections = find_connections(model) | {name: parameters[name] for name in masks}
    schemes = choose_schemes(model) if scheme == "auto" else {}
    _reset(model, seed)
    generator = torch.Generator(next(iter(connections.values())).device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in connections.items():
            mask = masks[name].to(weight.device) if name in masks else None
            weight.normal_(generator=generator)
            weight.mul_(_scale(weight, mask, schemes.get(name, scheme), epsilon))
            if mask is not None:
                weight.mul_(mask)


def choose_schemes(model: nn.Module) -> dict[str, Scheme]:
    """Choose how each connection of `model` is drawn by default.

    In a network that normalises, the scale of a layer in front of a norm cancels, and a masked layer
    behind the last norm is better small than loud: plain He. Without norms nothing else keeps the
    signal alive through a sparse network: He with the inputs that each unit has left.

    Example:
        >>> choose_schemes(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
        {'0.weight': 'he_fan_in', '2.weight': 'he_fan_in'}
        >>> choose_schemes(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)))
        {'0.weight': 'he', '2.weight': 'he'}
    """
    scheme: Scheme = "he" if has_norm(model) else "he_fan_in"
    return dict.fromkeys(find_connections(model), scheme)


def _scale(weight: Tensor, mask: Tensor | None, scheme: Scheme, epsilon: float) -> Tensor | float:
    if scheme == "normal":
        return epsilon
    inputs = weight[0].numel()
    if mask is None or scheme == "he":
        return math.sqrt(2.0 / inputs)
    if scheme == "he_density":
        return math.sqrt(2.0 / max(1.0, inputs * mask.float().mean().item()))
    active = mask.flatten(1).sum(1).clamp(min=1).to(weight.dtype)
    return (2.0 / active).sqrt().reshape(-1, *[1] * (weight.dim() - 1))


def _reset(model: nn.Module, seed: int) -> None:
    """Let every module reset itself, then set biases to zero."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=[d.index or 0 for d in devices]):
        torch.manual_seed(seed)
        for module in model.modules():
            if isinstance(module, NORMS) or not _holds_big_weight(module):
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                nn.init.zeros_(bias)


def _holds_big_weight(module: nn.Module) -> bool:
    """Linear and convolutional layers are drawn anew right after; resetting 140 M twice is waste."""
    return isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
