"""Linear regression on a subset of features."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from aprune.estimators import squares
from aprune.estimators.base import Array, SubsetEstimator, standardise


class SparseLinearRegression(RegressorMixin, SubsetEstimator):
    """Least squares with the best few features.

    The features are chosen by `aprune.solve`: all of them are there at first, single ones are
    exchanged at the end. What is minimised is half the mean squared error of standardised features
    and half of `alpha` times the squared weights.

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
        coef_: Weight of each feature, 0 for the others.
        intercept_: What is added.
        objective_: What was minimised.
        n_features_in_: Number of features seen.
        n_iter_: Steps of each search.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 8))
        >>> y = 3 * X[:, 2] - 2 * X[:, 5] + 0.1 * rng.normal(size=60)
        >>> model = SparseLinearRegression(2, random_state=0).fit(X, y)
        >>> np.flatnonzero(model.support_).tolist(), model.coef_[[2, 5]].round(1).tolist()
        ([2, 5], [3.0, -2.0])
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Choose features and fit weights."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        self._check_settings()
        x, mean, scale = standardise(X)
        middle = float(np.mean(y))
        targets = torch.from_numpy(np.asarray(y, dtype=np.float64) - middle)[:, None]
        f, fit, data, theta = squares.problem(x, targets, self.alpha, self._most())
        chosen = self._choose(f, fit, data, theta)
        weights, loss = squares.refit(chosen, data, self.alpha)
        self.objective_ = loss + self._price()
        self.coef_: Array = weights[:, 0].numpy() / scale
        self.intercept_ = middle - float(mean @ self.coef_)
        return self

    def predict(self, X: Any) -> Array:
        """Return the predicted targets."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        predicted: Array = X @ self.coef_ + self.intercept_
        return predicted
