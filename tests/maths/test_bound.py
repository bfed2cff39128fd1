"""Theorem 1: constants and bounds by hand, in their limits, and what holds for all numbers."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aprune.errors import SettingError
from aprune.maths.bound import Theorem, error_constant, g_max

temperatures = st.floats(0.01, 300)
sizes = st.floats(0, 10)

# e^(−tM) = 1/3, so g_max = 3/16 for both; C = 4·(1/4 − 2·9/256 + 4/256) = 200/256
BY_HAND = Theorem(t_l=2, t_s=2, c=0.5, g=2, m=math.log(3) / 2, r2=10)


def test_constants_by_hand() -> None:
    assert g_max(2, math.log(3) / 2) == pytest.approx(3 / 16)
    assert BY_HAND.constant == pytest.approx(0.78125)
    # g_max(8) = (1/9)/(10/9)² = 9/100; 1 − 64 · 0.09 · 3/16 + (32/16)²
    assert error_constant(8, 4, math.log(3) / 4) == pytest.approx(3.92)
    assert error_constant(4, 8, math.log(3) / 4) == pytest.approx(3.92)


def test_bounds_by_hand() -> None:
    # T = 16, c·√T = 2, c·G² = 2
    assert BY_HAND.printed(16) == pytest.approx(1 / 2 + 2 * 1.78125 * (1 + math.log(16)) / 16)
    assert BY_HAND.corrected(16) == pytest.approx(10 / 4 + 2 * 1.78125 / 4)
    assert BY_HAND.with_bias(16, -0.5) == pytest.approx(3.390625 - 0.5)
    assert BY_HAND.unconditional(16) == pytest.approx(3.390625 + 2 * math.sqrt(7.8125))
    assert replace(BY_HAND, r2=1000).printed(16) == BY_HAND.printed(16)


def test_all_bounds_by_name() -> None:
    assert BY_HAND.bounds(16, bias=2.0) == {
        "printed": BY_HAND.printed(16),
        "corrected": BY_HAND.corrected(16),
        "with_bias": BY_HAND.corrected(16) + 2.0,
        "unconditional": BY_HAND.unconditional(16),
    }


def test_steps_of_v_that_are_all_longer_than_the_gradient() -> None:
    # every factor is 64/16 = 4: C = 1 − 8 + 16 = 9, but the square of a step is 16·G², not 10·G²
    theorem = Theorem(t_l=8, t_s=8, c=1, g=1, m=0, r2=0)
    assert theorem.constant == 9
    assert theorem.corrected(1) == 16


def test_limits_of_the_constant() -> None:
    # a backward pass without a slope moves nothing: r is the gradient
    assert error_constant(100, 1e-9, 1) == pytest.approx(1, abs=1e-6)
    # far out nothing is sure but the two extremes
    assert error_constant(100, 10, 1e6) == 1 + 62.5**2
    assert error_constant(4, 4, 1e6) == 2
    # around zero a step is t_l·t_s/16 of the gradient's
    assert error_constant(4, 4, 0) == 0
    assert error_constant(20, 2, 0) == 1.5**2


@pytest.mark.parametrize("m", [0.0, 1.0, 1e3, 1e300])
def test_nothing_overflows(m: float) -> None:
    assert 0 <= g_max(1e300, m) <= 0.25
    assert 0 <= error_constant(1e50, 1e50, m) < math.inf


@given(st.floats(0.01, 30), st.floats(0, 3))
def test_the_slope_in_many_digits(t: float, m: float) -> None:
    small = (-Decimal(t) * Decimal(m)).exp()
    sigma = 1 / (1 + small)
    assert g_max(t, m) == pytest.approx(float(sigma * (1 - sigma)), rel=1e-9)


@given(temperatures, temperatures, sizes, sizes)
def test_the_constant_grows_with_the_largest_w(
    t_l: float, t_s: float, one: float, two: float
) -> None:
    largest = t_l * t_s / 16
    low, high = (error_constant(t_l, t_s, m) for m in sorted((one, two)))
    assert low <= high + 1e-12 * largest**2 + 1e-12  # but for rounding
    assert (1 - largest) ** 2 <= low * (1 + 1e-9) + 1e-9
    assert high <= 1 + largest**2


@given(temperatures, temperatures, st.floats(1e-3, 1e3), sizes, sizes, sizes, st.integers(1, 10**9))
def test_bounds_in_order(
    t_l: float, t_s: float, c: float, g: float, m: float, r2: float, steps: int
) -> None:
    theorem = Theorem(t_l, t_s, c, g, m, r2)
    assert 0 <= theorem.corrected(steps) <= theorem.unconditional(steps)
    assert theorem.corrected(4 * steps) == pytest.approx(theorem.corrected(steps) / 2)
    largest = g * math.sqrt(theorem.constant * r2)
    assert theorem.unconditional(steps) >= largest
    assert theorem.with_bias(steps, largest) == theorem.unconditional(steps)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"t_l": 0}, "t_l is 0: expected a number above 0"),
        ({"t_s": -1}, "t_s is -1"),
        ({"t_s": math.nan}, "t_s is nan"),
        ({"c": 0}, "c is 0"),
        ({"c": math.inf}, "c is inf"),
        ({"g": -1}, "g is -1: expected a number from 0 on"),
        ({"m": -1}, "m is -1"),
        ({"r2": -1}, "r2 is -1"),
        ({"t_l": 1e200}, "no number holds C"),
        ({"c": 1e-320}, "no number holds the bound"),
        ({"g": 1e200}, "no number holds the bound"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        replace(BY_HAND, **changes)


@pytest.mark.parametrize("steps", [0, -1, 0.5, math.inf, math.nan])
def test_steps_are_counted_from_one(steps: float) -> None:
    for bound in (BY_HAND.printed, BY_HAND.corrected, BY_HAND.unconditional):
        with pytest.raises(SettingError, match="steps is"):
            bound(steps)
    with pytest.raises(SettingError, match="steps is"):
        BY_HAND.with_bias(steps, 0.0)


@pytest.mark.parametrize("bias", [math.inf, math.nan])
def test_a_bias_is_a_number(bias: float) -> None:
    with pytest.raises(SettingError, match="bias is"):
        BY_HAND.with_bias(16, bias)
