"""Logistic regression on a subset of features, with a little of a ridge.

With standardised features, labels y of 0 and 1, weights θ and an intercept θ₀,

    f(v, θ) = mean(log(1 + e^z) − y·z) + ½·α·Σ v·θ²,    z = X(v∘θ) + θ₀.

The best θ of a v is found by Newton's method, with steps that are shortened where a whole one is too
long. For a feature that is not there it is what one such step would give it (see `squares`).
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Function = partial[Tensor]

_NEWTON = 15  # steps; from zero few are needed
_LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.0)
_SMALL = 128  # features up to which a whole fit in every step of a search is cheap


def functions(alpha: float, features: int, most: int) -> tuple[Function, Function, bool]:
    """Return f, the function that gives the best θ, and whether θ has to be moved in the descent.

    Of many features only the `most` that are there at a binary point take part in its fit.
    """
    many = features > _SMALL and most < features
    width = most if many else features
    return partial(_value, alpha=alpha), partial(_fit, alpha=alpha, width=width), many


def _value(v: Tensor, theta: Tensor, x: Tensor, y: Tensor, *, alpha: float) -> Tensor:
    z = x @ (v * theta[:-1]) + theta[-1]
    ridge = alpha * (v * theta[:-1].square()).sum() / 2
    return (F.softplus(z) - y * z).mean() + ridge


def _fit(v: Tensor, x: Tensor, y: Tensor, *, alpha: float, width: int) -> Tensor:
    places = v.topk(width).indices
    shares = v[places]
    # the intercept is a feature that is always there and costs nothing
    masked = torch.cat([x[:, places] * shares, torch.ones_like(x[:, :1])], 1)
    ridge = torch.cat([alpha * shares + (1 - shares), torch.full_like(v[:1], 1e-9)])
    theta = torch.zeros_like(ridge)
    lengths = torch.tensor(_LENGTHS, dtype=x.dtype)
    for _ in range(_NEWTON):
        p = torch.sigmoid(masked @ theta)
        slope = masked.T @ (p - y) / len(y) + ridge * theta
        curve = (masked.T * (p * (1 - p))) @ masked / len(y) + torch.diag(ridge)
        step = torch.linalg.solve(curve, slope)
        tried = theta - lengths[:, None] * step
        z = tried @ masked.T
        values = (F.softplus(z) - y * z).mean(1) + (ridge * tried.square()).sum(1) / 2
        best = F.one_hot(values.argmin(), len(_LENGTHS)).to(x.dtype)
        theta = best @ tried
    p = torch.sigmoid(masked @ theta)
    left = x.T @ (y - p) / len(y)
    alone = left / (x.square().T @ (p * (1 - p)) / len(y) + alpha)
    there = torch.zeros_like(v).scatter(0, places, theta[:-1])
    whole = torch.zeros_like(v).scatter(0, places, torch.ones_like(shares))
    chosen = torch.where(whole > 0, there + (1 - v) * alone, alone)
    return torch.cat([chosen, theta[-1:]])
