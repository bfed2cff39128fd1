"""The estimators: scikit-learn's own checks, and subsets that are known to be the best."""

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from aprune.estimators import (
    SparseLinearRegression,
    SparseLogisticRegression,
    SubsetSelector,
    squares,
)
from aprune.estimators.base import standardise
from aprune.solver.objective import Objective

EVERY = (SparseLinearRegression, SparseLogisticRegression, SubsetSelector)

CHECK = """
import sys
from sklearn.utils.estimator_checks import check_estimator
import aprune.estimators
kind = getattr(aprune.estimators, sys.argv[1])
results = check_estimator(kind(restarts=2, steps=10), on_fail=None, on_skip=None)
bad = [(one["check_name"], one["exception"]) for one in results if one["status"] != "passed"]
print(len(results), bad)
sys.exit(bool(bad) or len(results) < 40)
"""


@pytest.mark.parametrize("kind", EVERY)
def test_scikit_learns_own_checks_pass_unskipped(kind: type) -> None:
    # one of them is skipped unless this is set before scipy is imported
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, kind.__name__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def make_regression(seed: int, n: int = 40, features: int = 9) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, features)) @ rng.normal(size=(features, features)) + 5.0
    return X, X[:, :3] @ rng.normal(size=3) + rng.normal(size=n)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_subset_for_least_squares(seed: int) -> None:
    X, y = make_regression(seed)
    model = SparseLinearRegression(3, alpha=1e-9, random_state=0).fit(X, y)
    errors = {}
    for chosen in itertools.combinations(range(9), 3):
        fitted = LinearRegression().fit(X[:, chosen], y)
        errors[chosen] = float(np.mean((fitted.predict(X[:, chosen]) - y) ** 2))
    best = min(errors, key=errors.__getitem__)
    assert tuple(np.flatnonzero(model.support_)) == best
    assert 2 * model.objective_ == pytest.approx(errors[best], rel=1e-5)
    direct = LinearRegression().fit(X[:, best], y)
    assert model.coef_[list(best)] == pytest.approx(direct.coef_, rel=1e-4)
    assert model.intercept_ == pytest.approx(direct.intercept_, rel=1e-3, abs=1e-3)
    assert np.count_nonzero(model.coef_) == 3


@pytest.mark.parametrize("seed", range(3))
def test_the_best_subset_for_two_classes(seed: int) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(seed)
    X = X[:, rng.choice(30, 7, replace=False)]
    model = SparseLogisticRegression(2, alpha=0.01, restarts=4, steps=30, random_state=0).fit(X, y)
    Z = (X - X.mean(0)) / X.std(0)
    losses = {}
    for chosen in itertools.combinations(range(7), 2):
        # C is the inverse of the ridge for the sum of all losses
        fitted = LogisticRegression(C=1 / (0.01 * len(y)), tol=1e-8).fit(Z[:, chosen], y)
        p = fitted.predict_proba(Z[:, chosen])[np.arange(len(y)), y]
        losses[chosen] = -np.log(p).mean() + 0.005 * np.square(fitted.coef_).sum()
    best = min(losses, key=losses.__getitem__)
    assert tuple(np.flatnonzero(model.support_)) == best
    assert model.objective_ == pytest.approx(losses[best], rel=1e-6)
    assert model.score(X, y) > 0.85
    assert model.predict_proba(X).sum(1) == pytest.approx(np.ones(len(y)))


def test_many_features_are_fitted_a_few_at_a_time() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 150))
    y = X[:, 3] + X[:, 77] - X[:, 120] > 0
    model = SparseLogisticRegression(3, restarts=4, steps=40, random_state=0).fit(X, y)
    assert np.flatnonzero(model.support_).tolist() == [3, 77, 120]
    assert model.score(X, y) > 0.97


def test_gamma_chooses_the_number() -> None:
    X, y = make_regression(0)
    y = (y - y.mean()) / y.std()
    numbers = [
        int(SparseLinearRegression(gamma=gamma, random_state=0).fit(X, y).support_.sum())
        for gamma in (0.0, 0.01, 1.0)
    ]
    assert numbers[0] == 9
    assert 9 > numbers[1] > numbers[2] == 0


def test_half_or_a_fraction_of_the_features() -> None:
    X, y = load_iris(return_X_y=True)
    for asked, number in ((None, 2), (0.75, 3), (1, 1), (0.01, 1)):
        assert SubsetSelector(asked, restarts=2, steps=10).fit(X, y).get_support().sum() == number


def test_selector_takes_numbers_classes_and_several_targets() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    by_class = SubsetSelector(2, random_state=0).fit(X, y)
    by_name = SubsetSelector(2, random_state=0).fit(X, names)
    assert by_class.get_support().tolist() == by_name.get_support().tolist()
    several = SubsetSelector(2, random_state=0).fit(X[:, :3], X[:, [3, 3]])
    alone = SubsetSelector(2, random_state=0).fit(X[:, :3], X[:, 3])
    assert several.get_support().tolist() == alone.get_support().tolist()


def test_they_work_in_a_pipeline_and_a_grid() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[(y == 3) | (y == 8)], y[(y == 3) | (y == 8)]
    pipeline = make_pipeline(
        SubsetSelector(restarts=2, steps=20, random_state=0), LogisticRegression()
    )
    grid = GridSearchCV(pipeline, {"subsetselector__n_features_to_select": [1, 5]}, cv=3)
    grid.fit(X, y)
    assert grid.best_params_ == {"subsetselector__n_features_to_select": 5}
    assert grid.best_score_ > 0.9
    few = SparseLogisticRegression(restarts=2, steps=10, random_state=0)
    found = GridSearchCV(few, {"n_features_to_select": [1, 3]}, cv=2).fit(X, y)
    assert found.best_params_ == {"n_features_to_select": 3}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n_features_to_select": 5}, "n_features_to_select=5 must be <= n_features=4"),
        ({"n_features_to_select": 0}, "The 'n_features_to_select' parameter of"),
        ({"n_features_to_select": 1.5}, "Got 1.5 instead"),
        ({"n_features_to_select": "all"}, "Got 'all' instead"),
        ({"gamma": -1.0}, "The 'gamma' parameter of"),
        ({"alpha": 0.0}, "The 'alpha' parameter of"),
        ({"restarts": 0}, "The 'restarts' parameter of"),
        ({"steps": 2.5}, "The 'steps' parameter of"),
    ],
)
def test_bad_settings_are_refused(kind: Any, bad: dict[str, Any], message: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=message):
        kind(**bad).fit(X[:100], y[:100])


@pytest.mark.parametrize("kind", EVERY)
def test_bad_data_are_refused(kind: Any) -> None:
    X, y = load_iris(return_X_y=True)
    X, y = X[:100].copy(), y[:100]
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        kind().fit(X, y)
    with pytest.raises(ValueError, match="Expected 2D array"):
        kind().fit(X[:, 0], y)


def test_one_class_or_three_are_refused() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="only one class"):
        SparseLogisticRegression().fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        SparseLogisticRegression().fit(X, y)


def test_what_a_feature_would_bring_is_known_beforehand() -> None:
    x, y = make_regression(1)
    features, _, _ = standardise(x)
    targets = torch.from_numpy(y - y.mean())[:, None]
    f, fit, data, _ = squares.problem(features, targets, 1e-9, 9)
    objective = Objective(f, [tensor[None] for tensor in data], penalty=0.0, fit=fit, sample=None)
    m = torch.zeros(1, 1, 9, dtype=torch.bool)
    m[..., [1, 4, 6]] = True
    values, worth = objective.survey(m.double())
    for place in (0, 2, 3, 5, 7, 8):
        more = m.clone()
        more[..., place] = True
        gain = float(objective.values(more.double()) - values)
        assert float(worth[0, 0, place]) == pytest.approx(gain, rel=1e-4)


def test_many_numbers_are_explained_by_a_few_features() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 150))
    y = X[:, 3] + X[:, 77] - X[:, 120] + 0.1 * rng.normal(size=300)
    model = SparseLinearRegression(3, restarts=4, steps=40, random_state=0).fit(X, y)
    assert np.flatnonzero(model.support_).tolist() == [3, 77, 120]
    direct = LinearRegression().fit(X[:, [3, 77, 120]], y)
    assert model.coef_[[3, 77, 120]] == pytest.approx(direct.coef_, abs=2e-3)


def test_a_fit_of_few_features_is_that_of_all() -> None:
    x, y = make_regression(2)
    features, _, _ = standardise(x)
    data = squares.problem(features, torch.from_numpy(y - y.mean())[:, None], 1e-3, 9)[2]
    v = torch.zeros(9, dtype=torch.float64)
    v[[0, 3, 8]] = 1.0
    few = squares._fit_few(v, *data, alpha=1e-3, width=3)
    assert torch.allclose(few, squares._fit(v, *data, alpha=1e-3))
