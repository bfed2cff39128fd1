"""Logistic regression on a subset of features."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from aprune.estimators import logistic
from aprune.estimators.base import Array, SubsetEstimator, standardise


class SparseLogisticRegression(ClassifierMixin, SubsetEstimator):
    """Logistic regression of two classes with the best few features.

    The features are chosen as `SparseLinearRegression` chooses them. What is minimised is the mean
    negative log-likelihood of standardised features and half of `alpha` times the squared weights.

    Parameters
    ----------
        n_features_to_select: How many features, or which fraction of them; None leaves the number to
            `gamma`, or takes half of them without it.
        gamma: The price of a feature, added to the objective.
        alpha: The ridge; without it, classes that can be told apart have no best weights.
        restarts: Searches from different starts.
        steps: Length of each.
        random_state: Of the starts.

    Attributes
    ----------
        classes_: The two classes.
        support_: Which features were chosen.
        coef_: Weight of each feature [1, D], 0 for the others.
        intercept_: What is added [1].
        objective_: What was minimised.
        n_features_in_: Number of features seen.
        n_iter_: Steps of each search.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = SparseLogisticRegression(3, restarts=4, steps=30, random_state=0).fit(X, y)
        >>> int(model.support_.sum()), bool(model.score(X, y) > 0.95)
        (3, True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Choose features and fit weights."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if kind != "binary" or len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}."
            )
        if len(self.classes_) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains"
                f" only one class: {self.classes_[0]!r}"
            )
        self._check_settings()
        x, mean, scale = standardise(X)
        labels = torch.from_numpy(numbers.astype(np.float64))
        f, fit, data, start = logistic.problem(x, labels, self.alpha, self._most())
        chosen = self._choose(f, fit, data, start)
        theta, loss = logistic.refit(chosen, data, self.alpha)
        self.objective_ = loss + self._price()
        weights = theta[:-1].numpy() / scale
        self.coef_: Array = weights[None]
        self.intercept_: Array = np.array([float(theta[-1]) - float(mean @ weights)])
        return self

    def decision_function(self, X: Any) -> Array:
        """Return how much speaks for the second class."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Array = X @ self.coef_[0] + self.intercept_[0]
        return scores

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of both classes."""
        second = torch.sigmoid(torch.from_numpy(self.decision_function(X))).numpy()
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> Array:
        """Return the predicted classes."""
        scores = self.decision_function(X)
        predicted: Array = self.classes_[(scores > 0).astype(int)]
        return predicted

    def __sklearn_tags__(self) -> Any:
        """Say that there are two classes, no more."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
