"""Least squares on a subset of features, with a little of a ridge.

With features of mean 0 and deviation 1, A = XᵀX/n, B = XᵀY/n and u = v∘θ,

    f(v, θ) = ½·(mean ‖y‖² − 2⟨B, u⟩ + ⟨u, A·u⟩) + ½·α·Σ v·θ².

At a binary v that is the loss of the features that are there. The best θ is known. For a feature that
is not there it is what it would get beside those that are: then half the slope to v is what it would
bring.
"""

from functools import partial

import torch
from torch import Tensor

Function = partial[Tensor]

_WIDE = 128  # features that are fitted together in every step


def problem(
    x: Tensor, y: Tensor, alpha: float, most: int
) -> tuple[Function, Function, tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Return f, the function that gives the best θ, their data, and where θ starts if it is moved.

    It is where there are many features: the system of all of them is too large to be solved in every
    step. Then only those that are there at a binary point are fitted, 128 of them at most.

    Args:
        x: Standardised features [n, D].
        y: Centred targets [n, C].
        alpha: The ridge.
        most: The largest number of features.
    """
    data = (x.T @ x / len(x), x.T @ y / len(x), y.square().sum() / len(x))
    f = partial(_value, alpha=alpha)
    if x.shape[1] <= _WIDE:
        return f, partial(_fit, alpha=alpha), data, None
    few = partial(_fit_few, alpha=alpha, width=min(most, _WIDE))
    return f, few, data, torch.zeros_like(data[1])


def refit(v: Tensor, data: tuple[Tensor, Tensor, Tensor], alpha: float) -> tuple[Tensor, float]:
    """Return the weights of a binary point [D, C], zero where no feature is, and f there."""
    there = v.to(data[0].dtype)
    theta = there[:, None] * _fit_few(there, *data, alpha=alpha, width=int(v.sum()))
    return theta, float(_value(there, theta, *data, alpha=alpha))


def _value(v: Tensor, theta: Tensor, a: Tensor, b: Tensor, c: Tensor, *, alpha: float) -> Tensor:
    u = v[:, None] * theta
    loss = c - 2 * (b * u).sum() + (u * (a @ u)).sum()
    return (loss + alpha * (v[:, None] * theta.square()).sum()) / 2


def _fit(v: Tensor, a: Tensor, b: Tensor, c: Tensor, *, alpha: float) -> Tensor:  # noqa: ARG001
    # where v is 0, a row of the identity
    system = v[:, None] * a * v + torch.diag(alpha * v + (1 - v))
    beside = v[:, None] * a
    solved = torch.linalg.solve(system, torch.cat([v[:, None] * b, beside], 1))
    there, others = solved[:, : b.shape[1]], solved[:, b.shape[1] :]
    left = b - a @ (v[:, None] * there)
    # what is new about a feature, beside those that are there
    new = a.diagonal() + alpha - (beside * others).sum(0)
    alone = left / new.clamp(min=alpha)[:, None]
    whole: Tensor = there + (1 - v)[:, None] * alone
    return whole


def _fit_few(
    v: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,  # noqa: ARG001
    *,
    alpha: float,
    width: int,
) -> Tensor:
    places = v.topk(width).indices
    shares = v[places]
    system = shares[:, None] * a[places][:, places] * shares + torch.diag(
        alpha * shares + (1 - shares)
    )
    beside = shares[:, None] * a[places]
    solved = torch.linalg.solve(system, torch.cat([shares[:, None] * b[places], beside], 1))
    there, others = solved[:, : b.shape[1]], solved[:, b.shape[1] :]
    left = b - a[:, places] @ (shares[:, None] * there)
    # what is new about a feature, beside those that are there
    new = a.diagonal() + alpha - (beside * others).sum(0)
    alone = left / new.clamp(min=alpha)[:, None]
    spread = torch.zeros_like(b).scatter(0, places[:, None].expand_as(there), there)
    return torch.where(v[:, None] > 0.5, spread, alone)
