"""The two-temperature relaxation: a mask that is cold going forward and warm going backward.

Paper, section "Two-temperature continuous relaxation". With w ∈ R^D and t_l ≫ t_s > 0:

    forward    θ̃ = θ ∘ σ(t_l·w)                          (low-temperature approximation)
    backward   ∂L/∂θ = ∂L/∂θ̃ ∘ σ(t_l·w)                  (exact)
               ∂L/∂w = ∂L/∂θ̃ ∘ θ ∘ t_s·σ′(t_s·w)         (high-temperature gradient)

With t_s = t_l the backward pass is the exact gradient.
"""

from typing import Any

import torch
from torch import Tensor

from aprune.errors import SettingError


def relax(theta: Tensor, w: Tensor, t_l: float, t_s: float) -> Tensor:
    """Mask the weights `theta` by σ(t_l·w), with the gradient to `w` taken at t_s.

    Nothing but `theta` and `w` themselves is kept for the backward pass: both sigmoids are computed
    again there, so that the mask costs no activation memory. Half precision is computed in float32
    inside, and no finite t·w overflows.

    Args:
        theta: Weights θ of any shape, floating dtype and memory format.
        w: Mask parameters, of the shape of `theta`.
        t_l: Inverse temperature of the forward pass; large, so that the mask is almost binary.
        t_s: Inverse temperature of the backward pass; much smaller, so that the gradient lives.

    Returns:
        θ ∘ σ(t_l·w), with the dtype of `theta`.

    Example:
        >>> theta = torch.tensor([2.0, 2.0, 2.0])
        >>> w = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
        >>> relax(theta, w, t_l=100.0, t_s=1.0).tolist()
        [0.0, 1.0, 2.0]
        >>> relax(theta, w, t_l=100.0, t_s=1.0).sum().backward()
        >>> [round(value, 4) for value in w.grad.tolist()]
        [0.3932, 0.5, 0.3932]
    """
    if theta.shape != w.shape:
        raise SettingError(
            f"theta has shape {tuple(theta.shape)} and w {tuple(w.shape)}: expected one w a weight"
        )
    masked: Tensor = _Relax.apply(theta, w, t_l, t_s)  # type: ignore[no-untyped-call]
    return masked


def cold_mask(w: Tensor, t_l: float) -> Tensor:
    """Compute v = σ(t_l·w), the almost binary mask; what is below 1e-20 is 0.

    Cut off because connections that are off would otherwise multiply by denormal numbers, which a CPU
    computes with many times more slowly.

    Example:
        >>> cold_mask(torch.tensor([-0.9, 0.0, 0.9]), t_l=100.0).tolist()
        [0.0, 0.5, 1.0]
    """
    return torch.threshold(torch.sigmoid(t_l * w), 1e-20, 0.0)


def warm_slope(w: Tensor, t_s: Tensor | float) -> Tensor:
    """Compute t_s·σ′(t_s·w), the slope that stands in for the vanishing one.

    Written as σ(x)·σ(−x), which keeps its digits where 1 − σ(x) would lose them.

    Example:
        >>> warm_slope(torch.tensor([0.0]), t_s=10.0).item()
        2.5
    """
    x = t_s * w
    return t_s * torch.sigmoid(x) * torch.sigmoid(-x)


def binary_mask(w: Tensor) -> Tensor:
    """Return m = 1[w > 0], the limit of σ(t_l·w) as t_l → ∞.

    Example:
        >>> binary_mask(torch.tensor([-0.1, 0.0, 0.1])).tolist()
        [False, False, True]
    """
    return w > 0


class _Relax(torch.autograd.Function):
    """`relax` for autograd, vmap and torch.compile."""

    generate_vmap_rule = True

    @staticmethod
    def forward(theta: Tensor, w: Tensor, t_l: float, t_s: float) -> Tensor:  # noqa: ARG004
        masked = _wide(theta) * cold_mask(_wide(w), t_l)
        return masked.to(theta.dtype)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor, float, float],
        output: Tensor,  # noqa: ARG004
    ) -> None:
        theta, w, ctx.t_l, ctx.t_s = inputs
        ctx.save_for_backward(theta, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        theta, w = ctx.saved_tensors
        grad_theta = grad_w = None
        wide = _wide(w)
        if ctx.needs_input_grad[0]:
            grad_theta = (_wide(grad) * cold_mask(wide, ctx.t_l)).to(theta.dtype)
        if ctx.needs_input_grad[1]:
            grad_w = (_wide(grad) * _wide(theta) * warm_slope(wide, ctx.t_s)).to(w.dtype)
        return grad_theta, grad_w, None, None


def _wide(tensor: Tensor) -> Tensor:
    """Half precision in float32; everything else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
