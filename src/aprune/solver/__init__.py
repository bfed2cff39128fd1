"""The two-temperature scheme for any differentiable loss over subsets."""

from aprune.solver.core import Solution, solve
from aprune.solver.scheme import Scheme

__all__ = ["Scheme", "Solution", "solve"]
