"""A transformer that keeps a subset of features."""

from typing import Any, Self

import numpy as np
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from aprune.estimators import squares
from aprune.estimators.base import Array, SubsetEstimator, standardise


class SubsetSelector(SelectorMixin, SubsetEstimator):
    """Keeps the features that explain the target best by least squares.

    Numbers are targets as they are; classes become one column each, 1 for those of the class. Targets
    are standardised, so that `gamma` is a price in units of their variance.

    Parameters
    ----------
        n_features_to_select: How many features, or which fraction of them; None leaves the number to
            `gamma`, or takes half of them without it.
        gamma: The price of a feature, added to the objective.
        alpha: The ridge, small: features that say the same must not be ambiguous.
        restarts: Searches from different starts.
        steps: Length of each.
        random_state: Of the starts.

    Attributes
    ----------
        support_: Which features were chosen.
        objective_: What was minimised.
        n_features_in_: Number of features seen.
        n_iter_: Steps of each search.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> selector = SubsetSelector(2, random_state=0).fit(X, y)
        >>> selector.get_support().tolist(), selector.transform(X).shape
        ([False, True, False, True], (150, 2))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Choose features."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, ensure_min_samples=2)
        self._check_settings()
        x, _, _ = standardise(X)
        targets, _, _ = standardise(_columns(y))
        targets /= targets.shape[1] ** 0.5
        f, fit, data, theta = squares.problem(x, targets, self.alpha, self._most())
        chosen = self._choose(f, fit, data, theta)
        self.objective_ = squares.refit(chosen, data, self.alpha)[1] + self._price()
        return self

    def _get_support_mask(self) -> Array:
        check_is_fitted(self)
        return self.support_

    def __sklearn_tags__(self) -> Any:
        """Say that there has to be a target."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _columns(y: Array) -> Array:
    """Return targets [n, C] of floats."""
    if type_of_target(y) in ("binary", "multiclass"):
        y = y[:, None] == np.unique(y)[None]
    columns: Array = y.reshape(len(y), -1).astype(np.float64)
    return columns
