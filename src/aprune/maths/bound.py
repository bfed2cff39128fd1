"""Theorem 1 as it is printed, and what its proof gives once its last lines are set right.

Paper, Theorem 1 and its proof in the appendix. T steps of w with step sizes c/√i move v = σ(t_l·w) by
−α·(∇f − r): a stochastic gradient step with an error r of ‖r‖² ≤ G²·C (lemma on the error), with

    g_max(t) = σ(tM)·(1 − σ(tM))
    C = t_l·t_s·(1/(t_l·t_s) − 2·g_max(t_l)·g_max(t_s) + t_l·t_s/16²)

    printed         1/(c√T) + c·G²·(1 + C)·(1 + log T)/T                of the last iterate
    corrected       R²/(2c√T) + c·G²·(1 + C)/√T                         of the average, if E r = 0
    with_bias       corrected + (1/T)·Σ E rᵀ(v − v*)                    of the average, whatever E r
    unconditional   corrected + G·√C·R                                  the same, the bias at its largest

R² is the largest ‖v − v*‖², which is at most D. docs/theory.md derives all of them.
"""

import math
from dataclasses import dataclass

from aprune.errors import SettingError


def g_max(t: float, m: float) -> float:
    """Compute σ(tM)·(1 − σ(tM)), the smallest slope of the sigmoid where |w| ≤ M.

    It is computed from e^(−tM), which cannot overflow.

    Args:
        t: Inverse temperature.
        m: M, the largest |w|.

    Example:
        >>> g_max(100.0, 0.0)
        0.25
        >>> g_max(1e200, 1e200)
        0.0
    """
    _check(t=t)
    _check_not_negative(m=m)
    small = math.exp(-t * m)
    return small / (1.0 + small) ** 2


def error_constant(t_l: float, t_s: float, m: float) -> float:
    """Compute C of Theorem 1: the largest ‖r‖²/G² that the lemma on the error allows.

    With a_min = t_l·t_s·g_max(t_l)·g_max(t_s) and a_max = t_l·t_s/16 it is 1 − 2·a_min + a_max².

    Args:
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        m: M, the largest |w|.

    Raises:
        SettingError: A temperature is not above 0, M is negative, or the temperatures are so large that
            no number can hold C.

    Example:
        >>> error_constant(4.0, 4.0, 0.0)  # a step of w is a gradient step of v
        0.0
        >>> error_constant(100.0, 10.0, 2.0)
        3907.25
    """
    smallest, largest = _factors(t_l, t_s, m)
    return max(0.0, 1.0 - 2.0 * smallest + largest * largest)


@dataclass(frozen=True)
class Theorem:
    """The bounds on E F(v) − F(v*) after T steps, for given constants.

    Attributes:
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        c: Of the step sizes c/√i.
        g: G, the largest ‖∂ℓ/∂v‖ (equation of Assumption 1).
        m: M, the largest |w|.
        r2: R², the largest ‖v − v*‖²; D if nothing better is known. The printed bound has none.

    Example:
        >>> theorem = Theorem(t_l=4, t_s=4, c=0.5, g=1, m=0, r2=8)  # here C = 0
        >>> round(theorem.corrected(100), 4)  # 8/(2 · 0.5 · 10) + 0.5/10
        0.85
        >>> round(theorem.printed(100), 4)  # 1/(0.5 · 10) + 0.5 · (1 + log 100)/100
        0.228
    """

    t_l: float
    t_s: float
    c: float
    g: float
    m: float
    r2: float

    def __post_init__(self) -> None:
        _check(c=self.c)
        _check_not_negative(g=self.g, r2=self.r2)
        if not math.isfinite(self.printed(1) + self.unconditional(1)):
            raise SettingError(
                f"no number holds the bound for c = {self.c:g}, g = {self.g:g} and r2 = {self.r2:g}:"
                " choose less extreme ones"
            )

    @property
    def constant(self) -> float:
        """Return C."""
        return error_constant(self.t_l, self.t_s, self.m)

    def printed(self, steps: float) -> float:
        """Return the bound of Theorem 1 as it is printed."""
        steps = _check_steps(steps)
        noise = self.c * self.g * self.g * (1.0 + self.constant)
        return 1.0 / (self.c * math.sqrt(steps)) + noise * (1.0 + math.log(steps)) / steps

    def corrected(self, steps: float) -> float:
        """Return what the proof gives for the average iterate, with its assumption E r = 0.

        The square of a step is at most α²·G²·(1 + C), as the proof has it, unless every step of v is
        longer than its gradient step (a_min > 1); then a_max² stands in the place of 1 + C.
        """
        root = math.sqrt(_check_steps(steps))
        _, largest = _factors(self.t_l, self.t_s, self.m)
        noise = self.c * self.g * self.g * max(1.0 + self.constant, largest * largest)
        return self.r2 / (2.0 * self.c * root) + noise / root

    def with_bias(self, steps: float, bias: float) -> float:
        """Return what the proof gives for the average iterate without E r = 0: one term more.

        Args:
            steps: T.
            bias: The mean of E rᵀ(v − v*) over the steps. Below 0 the error helps.

        Example:
            >>> round(Theorem(t_l=4, t_s=4, c=0.5, g=1, m=0, r2=8).with_bias(100, bias=0.25), 4)
            1.1
        """
        if not math.isfinite(bias):
            raise SettingError(f"bias is {bias}: expected a finite number")
        return self.corrected(steps) + bias

    def unconditional(self, steps: float) -> float:
        """Return the bound for the average iterate if nothing is known of the bias.

        Cauchy and Schwarz bound rᵀ(v − v*) by G·√C·R. That term stays, however many the steps.
        """
        return self.corrected(steps) + self.g * math.sqrt(self.constant * self.r2)

    def bounds(self, steps: float, bias: float) -> dict[str, float]:
        """Return all of them by name, for T and the mean bias.

        Example:
            >>> list(Theorem(t_l=4, t_s=4, c=0.5, g=1, m=0, r2=8).bounds(100, bias=0.25))
            ['printed', 'corrected', 'with_bias', 'unconditional']
        """
        return {
            "printed": self.printed(steps),
            "corrected": self.corrected(steps),
            "with_bias": self.with_bias(steps, bias),
            "unconditional": self.unconditional(steps),
        }


def _factors(t_l: float, t_s: float, m: float) -> tuple[float, float]:
    """Return a_min and a_max: what a step of v is of its gradient step, at the least and the most."""
    _check(t_l=t_l, t_s=t_s)
    largest = t_l * t_s / 16.0
    if not math.isfinite(largest * largest):
        raise SettingError(
            f"t_l is {t_l:g} and t_s {t_s:g}: no number holds C; choose smaller ones"
        )
    return t_l * g_max(t_l, m) * t_s * g_max(t_s, m), largest


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise SettingError(f"{name} is {value}: expected a number above 0")


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise SettingError(f"{name} is {value}: expected a number from 0 on")


def _check_steps(steps: float) -> float:
    if not 1 <= steps < math.inf:
        raise SettingError(f"steps is {steps}: expected a number from 1 on")
    return steps
