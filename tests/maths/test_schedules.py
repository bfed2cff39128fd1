"""Schedules: values at hand-worked steps, and what holds for every length."""

import math
from functools import partial
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aprune.errors import SettingError
from aprune.maths.schedules import (
    SCHEDULES,
    ScheduleName,
    constant,
    find_schedule,
    hold,
    inverse_sqrt,
    one_cycle,
    ramp,
    sparsities_of_rounds,
    warm_up,
)


def test_the_type_of_names_is_the_table() -> None:
    assert get_args(ScheduleName) == tuple(SCHEDULES)


steps_of_a_run = st.integers(1, 3000)


def test_inverse_sqrt_is_that_of_the_theorem() -> None:
    assert [inverse_sqrt(step, 99) for step in (0, 3, 15)] == [1.0, 0.5, 0.25]


def test_constant() -> None:
    assert {constant(step, 10) for step in range(10)} == {1.0}


def test_one_cycle_worked_by_hand() -> None:
    # 2 of 8 steps rise; then cos(π·j/6) for j = 0 … 5
    falling = [0.5 * (1 + math.cos(math.pi * j / 6)) for j in range(6)]
    values = [one_cycle(step, 8, warmup=0.25) for step in range(8)]
    assert values == pytest.approx([0.5, 1.0, *falling])


@given(steps_of_a_run)
def test_one_cycle_rises_once_and_falls_once(steps: int) -> None:
    values = [one_cycle(step, steps) for step in range(steps)]
    top = values.index(max(values))
    assert max(values) == 1.0
    assert min(values) > 0
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)


def test_hold_worked_by_hand() -> None:
    values = [hold(step, 8, ends=0.25) for step in range(8)]
    assert values == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5])
    assert hold(0, 1) == 1.0


def test_warm_up_worked_by_hand() -> None:
    values = [warm_up(step, 10, length=0.5) for step in range(10)]
    assert values == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert warm_up(0, 1) == 1.0


def test_ramp_worked_by_hand() -> None:
    # from step 2 to step 6 of 10: x = 1/4 … 1
    values = [ramp(step, 10, start=0.2, end=0.6) for step in range(10)]
    expected = [0, 0, 1 - 0.75**3, 1 - 0.5**3, 1 - 0.25**3, 1, 1, 1, 1, 1]
    assert values == pytest.approx(expected)
    assert [ramp(step, 4, start=0.0, end=1.0, power=1.0) for step in range(4)] == [
        0.25,
        0.5,
        0.75,
        1.0,
    ]


@given(steps_of_a_run, st.floats(0, 0.99), st.floats(0.01, 1.0))
def test_ramp_never_falls_and_ends_at_one(steps: int, start: float, end: float) -> None:
    start, end = min(start, end * 0.99), end
    values = [ramp(step, steps, start=start, end=end) for step in range(steps)]
    assert values == sorted(values)
    assert all(0.0 <= value <= 1.0 for value in values)
    if round(start * steps) < steps:
        assert values[-1] == 1.0
    assert all(value == 0.0 for value in values[: round(start * steps)])


def test_rounds_worked_by_hand() -> None:
    # each round keeps a half, or a tenth
    assert sparsities_of_rounds(0.875, 3) == pytest.approx([0.5, 0.75, 0.875])
    assert sparsities_of_rounds(0.999, 3) == pytest.approx([0.9, 0.99, 0.999])
    assert sparsities_of_rounds(0.7, 1) == [0.7]
    assert sparsities_of_rounds(0.0, 4) == [0.0] * 4


@given(st.floats(0.001, 0.9999), st.integers(1, 40))
def test_rounds_all_keep_the_same_fraction_and_end_at_the_very_number(
    final: float, rounds: int
) -> None:
    sparsities = sparsities_of_rounds(final, rounds)
    assert len(sparsities) == rounds
    assert sparsities[-1] == final
    left = [1.0, *(1 - sparsity for sparsity in sparsities)]
    kept = [after / before for before, after in pairwise(left)]
    assert kept == pytest.approx([kept[0]] * rounds, rel=1e-9)
    assert max(kept) < 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_found_by_name(name: str) -> None:
    assert find_schedule(name) is SCHEDULES[name]


def test_a_function_is_a_schedule() -> None:
    early = partial(one_cycle, warmup=0.5)
    assert find_schedule(early) is early


def test_unknown_schedules_are_refused() -> None:
    with pytest.raises(SettingError, match="unknown schedule 'cosine': expected one of constant"):
        find_schedule("cosine")
