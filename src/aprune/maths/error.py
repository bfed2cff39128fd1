"""The error r of the two-temperature gradient, measured step by step.

Paper, appendix, lemma on the error. A step w⁺ = w − α·g, with the warm gradient
g = ∂L/∂v ∘ t_s·σ′(t_s·w), moves v = σ(t_l·w) by

    v⁺ = v − α·(∂L/∂v − r),     so     r = ∂L/∂v + (v⁺ − v)/α.
"""

import torch
from torch import Tensor


def step_error(
    w: Tensor, gradient: Tensor, slope: Tensor, *, alpha: Tensor | float, t_l: Tensor | float
) -> Tensor:
    """Compute r of one step of w.

    The change of v is taken as σ(a) − σ(b) = σ(a)·σ(−b)·(1 − e^(b−a)) with a ≥ b, which keeps its
    digits where both sigmoids are almost 1.

    Args:
        w: Where the step begins.
        gradient: g, the warm gradient that w moves along.
        slope: ∂L/∂v, of the shape of `w`.
        alpha: The step size, above 0.
        t_l: Inverse temperature of the forward pass.

    Returns:
        r, of the shape of `w`.

    Example:
        >>> w, slope = torch.zeros(2), torch.tensor([0.1, -0.1])
        >>> step_error(w, 10 * slope / 4, slope, alpha=1e-3, t_l=100.0)  # nearly 1 − 100 · 10/16 of it
        tensor([-6.1497,  6.1497])
    """
    before, change = t_l * w, -t_l * alpha * gradient
    after = before + change
    grown = torch.sigmoid(torch.maximum(before, after)) * torch.sigmoid(
        -torch.minimum(before, after)
    )
    grown = grown * -torch.expm1(-change.abs())
    return slope + torch.copysign(grown, change) / alpha
