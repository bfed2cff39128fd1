"""Estimators for scikit-learn that choose features by the two-temperature scheme."""

from aprune.estimators.classifier import SparseLogisticRegression
from aprune.estimators.regressor import SparseLinearRegression
from aprune.estimators.selector import SubsetSelector

__all__ = ["SparseLinearRegression", "SparseLogisticRegression", "SubsetSelector"]
