"""Mean and spread of repeated runs, and how sure a difference between two methods is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from aprune.errors import SettingError

Values = Sequence[float] | npt.NDArray[np.floating] | Tensor

_RESAMPLES = 9999
_ROUNDING = 1e-12  # differences closer than this, relative to the values, differ by rounding only


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of `n` values; prints as `mean ± std`.

    Example:
        >>> print(Summary(mean=0.5, std=0.125, n=5))
        0.500 ± 0.125
    """

    mean: float
    std: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = spec or ".3f"
        mean = format(self.mean, spec)
        return mean if math.isnan(self.std) else f"{mean} ± {format(self.std, spec)}"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Interval:
    """A mean of `n` values with the bounds of its confidence interval.

    Example:
        >>> print(Interval(mean=0.02, low=0.01, high=0.03, n=5))
        0.020 [0.010, 0.030]
    """

    mean: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        mean, low, high = (
            format(value, spec or ".3f") for value in (self.mean, self.low, self.high)
        )
        return f"{mean} [{low}, {high}]"

    def __str__(self) -> str:
        return format(self)


def summarise(values: Values) -> Summary:
    """Return mean and sample standard deviation.

    The deviation divides by n − 1; of a single value it is not known and is nan.

    Args:
        values: At least one finite number.

    Returns:
        Mean, standard deviation and count.

    Example:
        >>> summarise([1.0, 2.0, 3.0])
        Summary(mean=2.0, std=1.0, n=3)
        >>> summarise([4.0]).std
        nan
    """
    vector = _check(values, "values")
    std = float(vector.std(ddof=1)) if len(vector) > 1 else math.nan
    return Summary(mean=float(vector.mean()), std=std, n=len(vector))


def paired_interval(a: Values, b: Values, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of a − b, pair by pair, with a confidence interval.

    Pairs share what made both values vary (a seed, a task), so the differences vary less than the
    values do. The differences are drawn again with replacement 9,999 times, which gives the
    bias-corrected and accelerated (BCa) quantiles of the means. With a handful of pairs that is too
    narrow: of five, no more can be drawn again than are there. So Student's interval of the same
    differences is formed too, and on each side the bound is the one that is further out.

    Two cases have no such distribution. One pair: the bounds are nan, nothing is known about
    the spread. Differences that are all the same, up to rounding: both bounds are the mean.

    Args:
        a: Values of one method.
        b: Values of the other, in the same order.
        confidence: Probability that the interval should cover, between 0 and 1.
        seed: Decides what is drawn.

    Returns:
        Mean difference, lower and upper bound, number of pairs.

    Example:
        >>> paired_interval([3.0, 5.0], [2.0, 4.0])
        Interval(mean=1.0, low=1.0, high=1.0, n=2)
        >>> print(paired_interval([0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]))
        0.500 [-0.419, 1.419]
    """
    first, second = _check(a, "a"), _check(b, "b")
    if len(first) != len(second):
        raise SettingError(
            f"got {len(first)} values in a and {len(second)} in b; paired differences need as many"
            " in both, in the same order"
        )
    if not 0 < confidence < 1:
        raise SettingError(f"got a confidence of {confidence}; choose one between 0 and 1")
    difference = first - second
    mean, n = float(difference.mean()), len(difference)
    if n == 1:
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n)
    scale = max(np.abs(first).max(), np.abs(second).max())
    if np.ptp(difference) <= _ROUNDING * scale:
        return Interval(mean=mean, low=mean, high=mean, n=n)
    bounds = _bootstrap(difference, confidence, seed), _student(difference, confidence)
    lows, highs = zip(*bounds, strict=True)
    return Interval(mean=mean, low=min(lows), high=max(highs), n=n)


def _bootstrap(
    difference: npt.NDArray[np.float64], confidence: float, seed: int
) -> tuple[float, float]:
    """Return the bounds of the BCa interval of the mean."""
    from scipy.stats import bootstrap  # type: ignore[import-untyped]  # slow to import

    result = bootstrap(
        (difference,),
        np.mean,
        confidence_level=confidence,
        n_resamples=_RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _student(difference: npt.NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """Return the bounds of Student's interval of the mean."""
    from scipy.stats import sem, t

    mean, error = difference.mean(), sem(difference)
    low, high = t.interval(confidence, len(difference) - 1, loc=mean, scale=error)
    return float(low), float(high)


def _check(values: Values, name: str) -> npt.NDArray[np.float64]:
    """Return the values as a vector, or raise a `SettingError` if they are none."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or len(vector) == 0:
        raise SettingError(
            f"got {name} of shape {vector.shape}; give a list of at least one number"
        )
    if not np.isfinite(vector).all():
        raise SettingError(
            f"got {name} with {int((~np.isfinite(vector)).sum())} number(s) that are not finite;"
            " leave out the runs that failed, and say so"
        )
    return vector
