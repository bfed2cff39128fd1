"""How w moves: the settings of the scheme, the constraint, and the descent itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aprune.errors import SettingError
from aprune.maths.relaxation import cold_mask, warm_slope
from aprune.maths.schedules import Schedule, find_schedule, ramp
from aprune.solver.objective import Objective


@dataclass(frozen=True)
class Scheme:
    """Settings of the descent.

    Attributes:
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass; `t_s = t_l` is plain gradient descent.
        steps: Length of a descent.
        step: Step size α of w, and of θ if there is one.
        schedule: How both change over the steps: a schedule's name or a function of (step, steps).
        relative: Whether α is divided by the root mean square of the gradient, so that one `step` fits
            problems of every scale.
        spread: Standard deviation ε of w₀.
        ramp_end: Fraction of the steps at which the constraint holds; before, it comes down from all.
        drift: Whether the descent replaces the price of the ones, γ·Σv, by γ‖1 + w‖² as the paper does,
            which pulls every w towards −1. Binary points cost what they cost, γ·Σm, either way.

    Example:
        >>> Scheme(t_s=5.0).t_l
        1000.0
    """

    t_l: float = 1000.0
    t_s: float = 10.0
    steps: int = 100
    step: float = 0.1
    schedule: str | Schedule = "hold"
    relative: bool = True
    spread: float = 0.5
    ramp_end: float = 0.7
    drift: bool = False

    def __post_init__(self) -> None:
        for name in ("t_l", "t_s", "step", "spread"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingError(f"{name} is {getattr(self, name)!r}: expected a number above 0")
        if self.steps < 1:
            raise SettingError(f"steps is {self.steps!r}: expected at least 1")
        if not 0 < self.ramp_end <= 1:
            raise SettingError(f"ramp_end is {self.ramp_end!r}: expected a fraction above 0")
        find_schedule(self.schedule)


@dataclass(frozen=True)
class Count:
    """How many ones there may be.

    Attributes:
        least: At least so many.
        most: At most so many.
        size: Of so many.
    """

    least: int
    most: int
    size: int

    @property
    def free(self) -> bool:
        """Return whether every number is allowed."""
        return self.least == 0 and self.most == self.size

    def project(self, w: Tensor) -> Tensor:
        """Return the binary point of w: 1[w > 0], or the largest of them, or the largest of all.

        Example:
            >>> Count(0, 1, 3).project(torch.tensor([[0.5, -1.0, 2.0]])).long().tolist()
            [[0, 0, 1]]
        """
        if self.free:
            return w > 0
        largest = torch.zeros_like(w, dtype=torch.bool)
        largest.scatter_(-1, w.topk(self.most, -1).indices, True)
        return largest if self.least == self.most else largest & (w > 0)

    def threshold(self, w: Tensor, most: int) -> Tensor:
        """Return where w is cut so that `most` are above, [..., 1]; 0 if fewer are allowed and are."""
        if self.free:
            return w.new_zeros((*w.shape[:-1], 1))
        if most >= self.size:
            return w.amin(-1, keepdim=True) - 1.0
        ordered = w.topk(most + 1, -1).values
        between = (ordered[..., -2:-1] + ordered[..., -1:]) / 2 if most else ordered[..., :1] + 1.0
        return between if self.least == self.most else between.clamp(min=0.0)


Seen = Callable[[int, Tensor, Tensor | None], None]


def descend(
    objective: Objective,
    count: Count,
    scheme: Scheme,
    w: Tensor,
    theta: Tensor | None,
    seen: Seen,
) -> tuple[Tensor, Tensor | None]:
    """Move w, and θ along with it, from where they are.

    Args:
        objective: What is minimised.
        count: How many ones there may be at the end.
        scheme: How to move.
        w: One row for each problem and restart [P, R, D].
        theta: Likewise [P, R, ...], or None.
        seen: Called with the number of steps done, from 0 on, the binary points and θ.

    Returns:
        w and θ at the end.
    """
    schedule = find_schedule(scheme.schedule)
    seen(0, count.project(w), theta)
    for number in range(scheme.steps):
        share = ramp(number, scheme.steps, start=0.0, end=scheme.ramp_end)
        most = round(count.size - (count.size - count.most) * share)
        x = w - count.threshold(w, most)
        slope_v, slope_theta = objective.slopes(
            cold_mask(x, scheme.t_l), theta, number, priced=not scheme.drift
        )
        slope_w = slope_v * warm_slope(x, scheme.t_s)
        if scheme.drift:
            slope_w = slope_w + 2 * objective.penalty * (1.0 + w)
        step = scheme.step * schedule(number, scheme.steps)
        w = _move(w, slope_w, step, scheme.relative)
        if theta is not None and slope_theta is not None:
            theta = _move(theta, slope_theta, step, scheme.relative)
        seen(number + 1, count.project(w), theta)
    return w, theta


def _move(value: Tensor, slope: Tensor, step: float, relative: bool) -> Tensor:
    if relative:
        rows = slope.flatten(2).square().mean(-1).sqrt()
        rows = rows.reshape(*rows.shape, *[1] * (slope.dim() - 2))
        slope = torch.where(rows > 0, slope / rows, 0.0)
    return value - step * slope
