"""Logistic regression on a subset of features, with a little of a ridge.

With standardised features, labels y of 0 and 1, weights θ and an intercept θ₀,

    f(v, θ) = mean(log(1 + e^z) − y·z) + ½·α·Σ v·θ²,    z = X(v∘θ) + θ₀.

The best θ of a v is found by Newton's method. A step that moves no z by more than r changes no curvature
by more than e^r; so log(1 + r)/r of it is sure to lead down. Where the classes are almost apart, whole
steps are too short. The best of the three is taken: that part, the whole step, and twice the step.
For a feature that is not there θ is about what such a step would give it (see `squares`).
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Function = partial[Tensor]
Data = tuple[Tensor, Tensor, Tensor, Tensor]
"""X feature by feature, which are what is chosen; X²; the correlations of features; y."""

_NEWTON = 7  # steps; five are enough but where the ridge is tiny
_NEW = 0.01  # of a feature at least, since what is left of fewer is guessed
_WIDE = 128  # features at most that are fitted together


def problem(
    x: Tensor, y: Tensor, alpha: float, most: int
) -> tuple[Function, Function, Data, Tensor]:
    """Return f, the function that gives the best θ of a binary point, their data, and where θ starts.

    Of more than 128 features the others keep the weight zero: f is then a little more than it could be.

    Args:
        x: Standardised features [n, D].
        y: Labels of 0 and 1 [n].
        alpha: The ridge.
        most: The largest number of features.
    """
    features = x.T.contiguous()
    fit = partial(_fit, alpha=alpha, width=min(most, _WIDE), steps=_NEWTON)
    data = (features, features.square(), features @ x / len(x), y)
    start = x.new_zeros(x.shape[1] + 1)
    return partial(_value, alpha=alpha), fit, data, start


def refit(v: Tensor, data: Data, alpha: float) -> tuple[Tensor, float]:
    """Return the best θ of a binary point, to the last digits, and f there."""
    there = v.to(data[0].dtype)
    theta = _fit(there, *data, alpha=alpha, width=int(v.sum()), steps=10 * _NEWTON)
    value = _value(there, theta, *data, alpha=alpha)
    return torch.cat([there * theta[:-1], theta[-1:]]), float(value)


def _value(
    v: Tensor,
    theta: Tensor,
    x: Tensor,
    squares: Tensor,  # noqa: ARG001
    alike: Tensor,  # noqa: ARG001
    y: Tensor,
    *,
    alpha: float,
) -> Tensor:
    z = (v * theta[:-1]) @ x + theta[-1]
    ridge = alpha * (v * theta[:-1].square()).sum() / 2
    return (F.softplus(z) - y * z).mean() + ridge


def _fit(
    v: Tensor,
    x: Tensor,
    squares: Tensor,
    alike: Tensor,
    y: Tensor,
    *,
    alpha: float,
    width: int,
    steps: int,
) -> Tensor:
    places = v.topk(width).indices
    shares = v[places]
    # the intercept is a feature that is always there and costs nothing
    masked = torch.cat([x[places] * shares[:, None], torch.ones_like(x[:1])])
    ridge = torch.cat([alpha * shares + (1 - shares), torch.full_like(v[:1], 1e-9)])
    theta, z = torch.zeros_like(ridge), torch.zeros_like(y)
    for _ in range(steps):
        p = torch.sigmoid(z)
        slope = masked @ (p - y) / len(y) + ridge * theta
        curve = (masked * (p * (1 - p))) @ masked.T / len(y) + torch.diag(ridge)
        step = torch.linalg.solve(curve, slope)
        change = step @ masked
        farthest = change.abs().max().clamp(min=1e-30)
        one = torch.ones_like(farthest)
        lengths = torch.stack([torch.log1p(farthest) / farthest, one, 2 * one])
        zs = z - lengths[:, None] * change
        ridges = (ridge * (theta - lengths[:, None] * step).square()).sum(1) / 2
        length = lengths[((F.softplus(zs) - y * zs).mean(1) + ridges).argmin()]
        theta, z = theta - length * step, z - length * change
    p = torch.sigmoid(z)
    # what is new about a feature, beside those that are there, as far as correlations tell
    beside = shares[:, None] * alike[places]
    system = beside[:, places] * shares + torch.diag(alpha * shares + (1 - shares))
    new = 1 - (beside * torch.linalg.solve(system, beside)).sum(0)
    curves = new.clamp(min=_NEW) * (squares @ (p * (1 - p))) + alpha * len(y)
    alone = x @ (y - p) / curves
    there = torch.zeros_like(v).scatter(0, places, theta[:-1])
    return torch.cat([torch.where(v > 0.5, there, alone), theta[-1:]])
