"""Summaries and intervals against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from aprune.errors import SettingError
from aprune.maths.statistics import Interval, Summary, paired_interval, summarise


def test_summary_by_hand() -> None:
    # Mean 5; squared deviations 9 + 1 + 1 + 9 = 20; divided by n − 1 = 3.
    summary = summarise([2.0, 4.0, 6.0, 8.0])
    assert summary.mean == 5.0
    assert summary.std == pytest.approx(math.sqrt(20 / 3), rel=1e-15)
    assert summary.n == 4


def test_one_value_has_no_spread() -> None:
    summary = summarise([0.7])
    assert (summary.mean, summary.n) == (0.7, 1)
    assert math.isnan(summary.std)
    assert str(summary) == "0.700"


def test_lists_arrays_and_tensors_are_alike() -> None:
    values = [0.25, 0.5, 1.0]
    tensor = torch.tensor(values, requires_grad=True)
    assert summarise(values) == summarise(np.array(values)) == summarise(tensor)


def test_summaries_and_intervals_print_with_the_digits_asked_for() -> None:
    assert f"{Summary(10.84, 0.449, 5):.1f}" == "10.8 ± 0.4"
    assert f"{Interval(-0.5, -0.75, 0.25, 5):.2f}" == "-0.50 [-0.75, 0.25]"


def test_two_pairs_by_hand() -> None:
    # Differences 0 and 1 give resampled means 0, ½, 1 with probabilities ¼, ½, ¼: the bootstrap has
    # no more than the two ends to offer. The standard error is √½/√2 = ½, and the quantiles of
    # Student's distribution with one degree of freedom are tan(π(p − ½)): 12.706 at 97.5 %.
    for confidence in (0.95, 0.6):
        reach = math.tan(math.pi * confidence / 2) / 2
        interval = paired_interval([3.0, 5.0], [3.0, 4.0], confidence=confidence)
        assert (interval.mean, interval.n) == (0.5, 2)
        assert interval.low == pytest.approx(min(0.0, 0.5 - reach))
        assert interval.high == pytest.approx(max(1.0, 0.5 + reach))


def test_five_pairs_hold_the_truth_as_often_as_they_say() -> None:
    rng, times = np.random.default_rng(0), 400
    intervals = [paired_interval(rng.normal(size=5), np.zeros(5)) for _ in range(times)]
    held = sum(interval.low <= 0 <= interval.high for interval in intervals)
    assert 0.925 < held / times < 0.985  # of the bootstrap alone it would be 0.85


def test_many_pairs_approach_the_normal_interval() -> None:
    noise = np.random.default_rng(3).normal(size=2000)
    shared = np.random.default_rng(4).normal(scale=50, size=2000)
    interval = paired_interval(shared + 0.3 + noise, shared)
    half = 1.959964 * noise.std(ddof=1) / math.sqrt(2000)
    assert interval.mean == pytest.approx(0.3 + noise.mean())
    assert interval.low == pytest.approx(interval.mean - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.1 * half)


def test_bounds_lean_towards_the_long_tail() -> None:
    skewed = np.random.default_rng(0).exponential(size=30)
    interval = paired_interval(skewed, np.zeros(30))
    assert interval.high - interval.mean > interval.mean - interval.low > 0


def test_swapping_the_methods_mirrors_the_interval() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 12))
    forward, back = paired_interval(a, b), paired_interval(b, a)
    assert (back.mean, back.n) == (-forward.mean, forward.n)
    assert back.low == pytest.approx(-forward.high, abs=0.02)
    assert back.high == pytest.approx(-forward.low, abs=0.02)


def test_the_seed_decides_and_nothing_else() -> None:
    a, b = np.random.default_rng(2).exponential(size=30), np.zeros(30)
    np.random.seed(11)
    first = paired_interval(a, b, seed=5)
    np.random.seed(12)
    assert paired_interval(a, b, seed=5) == first
    assert paired_interval(a, b, seed=6) != first


def test_one_pair_has_unknown_bounds() -> None:
    interval = paired_interval([2.0], [0.5])
    assert (interval.mean, interval.n) == (1.5, 1)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.3, 0.3, 0.3], [0.1, 0.1, 0.1]),
        # 0.3 − 0.1 and 1.2 − 1.0 differ in the last bit only.
        ([0.3, 1.2, 2.2], [0.1, 1.0, 2.0]),
        ([0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_equal_differences_give_a_point(a: list[float], b: list[float]) -> None:
    interval = paired_interval(a, b)
    assert interval.low == interval.high == interval.mean
    assert interval.mean == pytest.approx(a[0] - b[0])


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, math.nan], [math.inf]])
def test_what_is_no_list_of_numbers_is_refused(bad: list[float]) -> None:
    with pytest.raises(SettingError):
        summarise(bad)
    with pytest.raises(SettingError):
        paired_interval(bad, bad)


def test_pairs_must_match_and_confidence_must_be_a_probability() -> None:
    with pytest.raises(SettingError, match="3 values in a and 2 in b"):
        paired_interval([1.0, 2.0, 3.0], [1.0, 2.0])
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(SettingError, match="between 0 and 1"):
            paired_interval([1.0, 2.0], [0.0, 0.5], confidence=confidence)
