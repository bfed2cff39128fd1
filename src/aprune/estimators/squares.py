"""Least squares on a subset of features, with a little of a ridge.

With features of mean 0 and deviation 1, A = XᵀX/n, B = XᵀY/n and u = v∘θ,

    f(v, θ) = ½·(mean ‖y‖² − 2⟨B, u⟩ + ⟨u, A·u⟩) + ½·α·Σ v·θ².

At a binary v that is the loss of the features that are there. The best θ is known. For a feature that
is not there it is what it would start with: so the slope to v says what a feature would bring, and how
much one is missed.
"""

from functools import partial

import torch
from torch import Tensor

from aprune.solver import Solution

Function = partial[Tensor]


def gram(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, B and the mean of ‖y‖² from features [n, D] and centred targets [n, C]."""
    return x.T @ x / len(x), x.T @ y / len(x), y.square().sum() / len(x)


def functions(alpha: float) -> tuple[Function, Function]:
    """Return f and the function that gives the best θ."""
    return partial(_value, alpha=alpha), partial(_fit, alpha=alpha)


def weights(found: Solution) -> Tensor:
    """Return the weights of a solution, zero where no feature is [D, C]."""
    assert found.theta is not None
    return torch.where(found.v[:, None], found.theta, 0.0)


def _value(v: Tensor, theta: Tensor, a: Tensor, b: Tensor, c: Tensor, *, alpha: float) -> Tensor:
    u = v[:, None] * theta
    loss = c - 2 * (b * u).sum() + (u * (a @ u)).sum()
    return (loss + alpha * (v[:, None] * theta.square()).sum()) / 2


def _fit(v: Tensor, a: Tensor, b: Tensor, c: Tensor, *, alpha: float) -> Tensor:  # noqa: ARG001
    # where v is 0, a row of the identity
    system = v[:, None] * a * v + torch.diag(alpha * v + (1 - v))
    there = torch.linalg.solve(system, v[:, None] * b)
    left = b - a @ (v[:, None] * there)
    alone = left / (a.diagonal() + alpha)[:, None]
    whole: Tensor = there + (1 - v)[:, None] * alone
    return whole
