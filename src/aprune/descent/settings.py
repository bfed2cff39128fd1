"""What a descent may be told: the settings of `AP`, by which `find` and `attach` search."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from aprune.errors import SettingError, is_number
from aprune.maths.schedules import Schedule, ScheduleName, find_schedule
from aprune.maths.select import check_sparsity

_BY_FIND = {"set_by_find": True}  # not for the command line
# what was described before there was such a setting keeps its name
_LATER = {"unless_default": True}


@dataclass(frozen=True)
class Settings:
    """Where the mask starts, how it moves, and until when.

    Attributes:
        sparsity: Fraction, or fractions, of connections to remove. `find` sets it.
        steps: Length of the search. `find` sets it to the steps of the recipe.
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        w_scale: Standard deviation ε_w of w₀ ~ w_start + |N(0, ε_w²)|. Wide, so that few connections
            stand near the threshold at any time: deep networks without norms die of many flips at once.
        w_start: The smallest w₀ there can be. With 1 and a narrow `w_scale` all start alike: what is
            learnt decides which connections of a layer stay, and not how w₀ was drawn.
        theta_start: `he`; or `parent`, the weights that the network comes with; or a number ε_θ for
            θ₀ ~ N(0, ε_θ²).
        w_step: Step size α of w; how far a connection with a typical gradient moves in a step if
            `relative`, otherwise the factor of the gradient.
        w_schedule: How α changes over the steps after the dense start: a schedule's name or a
            function of (step, steps). It rises slowly by default: the first steps of w reach the
            layers with the largest gradients, which must not lose many connections at once.
        layer_share: How many times the mean gradient of a layer moves all of its connections together,
            besides what each does by its own, but by no more than 2α in a step. A single gradient is
            mostly noise, the mean of a layer's is not: so layers can hold on or let go long before the
            best connections are known. Needs `relative`; 0 is the paper.
        relative: Whether α is divided by the running root mean square of the gradient of all
            connections, which makes one `w_step` fit parents of every size.
        gamma: The penalty γ; `auto` takes, at each step, the smallest γ that brings the sparsity to
            its schedule.
        dense_start: Fraction of the steps before the first connection goes; None takes 0.3 for
            networks that normalise and 0.5 for others, which die without it, but at most half of
            `ramp_end`.
        ramp_end: Fraction of the steps at which the last sparsity is reached.
        record: Whether to measure on the way what Theorem 1 speaks of (see `Search.theory`). The search
            is the same, and a step of w costs more.
    """

    name: ClassVar[str]
    sparsity: float | Sequence[float] | None = field(default=None, metadata=_BY_FIND)
    steps: int | None = field(default=None, metadata=_BY_FIND)
    t_l: float = 100.0
    t_s: float = 10.0
    w_scale: float = 2.0
    w_start: float = field(default=0.0, metadata=_LATER)
    theta_start: Literal["he", "parent"] | float = "he"
    w_step: float = 0.01
    w_schedule: ScheduleName | Schedule = "warm_up"
    layer_share: float = field(default=0.0, metadata=_LATER)
    relative: bool = True
    gamma: float | Literal["auto"] = "auto"
    dense_start: float | None = None
    ramp_end: float = 0.9
    record: bool = field(default=False, metadata=_LATER)

    def __post_init__(self) -> None:
        for name in ("t_l", "t_s", "w_scale", "w_step"):
            if not is_number(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)!r}: expected a number above 0")
        for name in ("w_start", "layer_share"):
            if not is_number(getattr(self, name), least=0.0):
                given = getattr(self, name)
                raise SettingError(f"{name} is {given!r}: expected a number from 0 on")
        if self.layer_share and not self.relative:
            raise SettingError(
                f"layer_share is {self.layer_share} with relative=False: expected 0, or relative steps,"
                " whose size bounds what a layer moves by"
            )
        if self.gamma != "auto" and not is_number(self.gamma, least=0.0):
            raise SettingError(f"gamma is {self.gamma!r}: expected auto or a number from 0 on")
        if self.theta_start not in ("he", "parent") and not is_number(self.theta_start):
            raise SettingError(
                f"theta_start is {self.theta_start!r}: expected he, parent or a number above 0"
            )
        start = 0.0 if self.dense_start is None else self.dense_start
        if not 0 <= start < self.ramp_end <= 1:
            raise SettingError(
                f"dense_start is {start} and ramp_end {self.ramp_end}: expected 0 ≤ start < end ≤ 1"
            )
        find_schedule(self.w_schedule)

    @property
    def sparsities(self) -> tuple[float, ...]:
        """Return the sparsities that are asked for, in rising order."""
        asked = self.sparsity if isinstance(self.sparsity, Sequence) else [self.sparsity]
        return tuple(sorted({check_sparsity(s) for s in asked if s is not None}))
