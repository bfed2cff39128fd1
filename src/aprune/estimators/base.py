"""What the estimators have in common: settings, standardised features, and the call of `solve`."""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from aprune.solver import Scheme, solve

Array = np.ndarray[Any, Any]


class SubsetEstimator(BaseEstimator):
    """Chooses features; the subclasses say what for."""

    n_features_in_: int
    objective_: float

    def __init__(
        self,
        n_features_to_select: int | float | None = None,
        *,
        gamma: float | None = None,
        alpha: float = 1e-3,
        restarts: int = 16,
        steps: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.gamma = gamma
        self.alpha = alpha
        self.restarts = restarts
        self.steps = steps
        self.random_state = random_state

    def _choose(
        self,
        f: Callable[..., Tensor],
        fit: Callable[..., Tensor],
        data: Sequence[Tensor],
        theta: Tensor | None,
    ) -> Tensor:
        """Find the features."""
        seed = check_random_state(self.random_state).randint(2**31)
        scheme = Scheme(steps=self.steps)
        # binary points before have more features in mind than they may have
        moments = range(round(scheme.ramp_end * self.steps), self.steps + 1)
        (found,) = solve(
            f,
            self.n_features_in_,
            data=[tensor[None] for tensor in data],
            theta=theta,
            fit=fit,
            exactly=self._number(),
            penalty=self.gamma or 0.0,
            scheme=scheme,
            moments=moments if self._number() is not None else None,
            restarts=self.restarts,
            seed=int(seed),
            progress=False,
        )
        self.support_: Array = found.v.numpy()
        self.n_iter_: int = self.steps
        return found.v

    def _check_settings(self) -> None:
        for name, least in (("restarts", 1), ("steps", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(self._complain(name, "an int in the range [1, inf)", value))
        if not _is_real(self.alpha) or not 0 < self.alpha < np.inf:
            expected = "a float in the range (0.0, inf)"
            raise ValueError(self._complain("alpha", expected, self.alpha))
        if self.gamma is not None and not (_is_real(self.gamma) and 0 <= self.gamma < np.inf):
            expected = "a float in the range [0.0, inf) or None"
            raise ValueError(self._complain("gamma", expected, self.gamma))

    def _number(self) -> int | None:
        """Return how many features to select; None leaves it to `gamma`."""
        asked, features = self.n_features_to_select, self.n_features_in_
        if asked is None:
            return None if self.gamma is not None else max(1, features // 2)
        expected = "an int in the range [1, inf), a float in the range (0, 1] or None"
        if not _is_real(asked):
            raise ValueError(self._complain("n_features_to_select", expected, asked))
        if isinstance(asked, Integral):
            if asked < 1:
                raise ValueError(self._complain("n_features_to_select", expected, asked))
            if asked > features:
                raise ValueError(f"n_features_to_select={asked} must be <= n_features={features}.")
            return int(asked)
        if not 0 < asked <= 1:
            raise ValueError(self._complain("n_features_to_select", expected, asked))
        return max(1, round(float(asked) * features))

    def _most(self) -> int:
        """Return the largest number of features that may be selected."""
        number = self._number()
        return self.n_features_in_ if number is None else number

    def _price(self) -> float:
        """Return what the selected features cost."""
        return (self.gamma or 0.0) * float(self.support_.sum())

    def _complain(self, name: str, expected: str, value: object) -> str:
        kind = type(self).__name__
        return f"The {name!r} parameter of {kind} must be {expected}. Got {value!r} instead."


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def standardise(x: Array) -> tuple[Tensor, Array, Array]:
    """Return features with mean 0 and deviation 1, and both; constant ones become 0.

    Example:
        >>> standardise(np.array([[1.0, 5.0], [3.0, 5.0]]))[0].tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    mean, scale = x.mean(0), x.std(0)
    # what is left of a constant by rounding is no deviation
    constant = scale <= 10 * np.finfo(x.dtype).eps * np.maximum(1.0, np.abs(mean))
    scale = np.where(constant, 1.0, scale)
    return torch.from_numpy(np.where(constant, 0.0, (x - mean) / scale)), mean, scale
