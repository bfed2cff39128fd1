"""Bare architectures: all connections of a tensor have one magnitude, and only their signs are learnt.

A layer sees s·sign(θ) in place of θ, with one s for each tensor: the mean of |θ| over the connections
that are there, as in Rastegari, Ordonez, Redmon and Farhadi, "XNOR-Net" (ECCV 2016). The gradient goes
straight through to θ, as if the layer had seen θ itself; s counts as a constant. Where no connection is,
θ is exactly zero, and so is its sign: no mask is needed.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aprune.connections import find_connections, fold, parametrise, weights_of
from aprune.errors import SettingError


@contextlib.contextmanager
def signs_shown(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Let layers see the signs of the weights named for the block; afterwards that is all there is.

    Parameters stay where they are in memory, so that what was captured within one block serves the
    next, and in their order.

    Example:
        >>> layer = nn.Linear(3, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0, -1.0]]))
        >>> with signs_shown(layer, ["weight"]):
        ...     layer(torch.tensor([1.0, 0.0, 0.0])).item()
        2.0
        >>> layer.weight.tolist()
        [[2.0, 0.0, -2.0]]
    """
    orders = {module: list(module._parameters) for module in model.modules()}
    with contextlib.ExitStack() as stack:
        stack.callback(_restore, orders)
        for name in names:
            parametrise(model, name, Signs())
            stack.callback(fold, model, [name])
        yield


def bare_names(model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors that are bare: connections with a mask, or all of them if there is none.

    Raises:
        SettingError: There are masks, but of biases and norms only.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 1))
        >>> bare_names(net, {})
        ['0.weight', '2.weight']
        >>> bare_names(net, {"1.weight": torch.ones(2), "2.weight": torch.ones(1, 2)})
        ['2.weight']
    """
    if not masks:
        return list(find_connections(model))
    weights = weights_of(model)
    names = [name for name in masks if name in weights]
    if not names:
        raise SettingError(
            f"nothing is left to be bare: the architecture holds {', '.join(masks)}, none of which "
            "multiplies an input; retrain it with real weights"
        )
    return names


class Signs(nn.Module):
    """A parametrisation that shows s·sign(θ), with s the mean of |θ| where θ is not zero."""

    def forward(self, theta: Tensor) -> Tensor:
        """Return −s, 0 or +s for each entry of θ."""
        shown: Tensor = _StraightThrough.apply(theta)  # type: ignore[no-untyped-call]
        return shown


def _restore(orders: Mapping[nn.Module, list[str]]) -> None:
    """Put parameters in order: folding puts one last, but fresh weights are drawn one after another."""
    for module, order in orders.items():
        for leaf in order:
            module._parameters[leaf] = module._parameters.pop(leaf)


class _StraightThrough(torch.autograd.Function):
    """s·sign(θ); the gradient is that of θ itself."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> Tensor:  # noqa: ARG004
        there = theta.count_nonzero().clamp(min=1)  # a tensor without connections stays empty
        return theta.sign() * (theta.abs().sum() / there)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad[0]
