"""RigL: train a sparse network, and now and then put the smallest weights where the gradient is largest.

Evci, Gale, Menick, Castro and Elsen, "Rigging the lottery: making all tickets winners" (ICML 2020).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from aprune.methods.dynamic import check, search_dynamically
from aprune.methods.protocol import Method, Outcome, Problem


@dataclass(frozen=True)
class RigL(Method):
    """RigL.

    Attributes:
        every: Steps between two exchanges; None makes 50 of them, or as many as there is room for.
        fraction: Of the connections of a layer that are exchanged at first; it falls to zero along a
            cosine.
        until: Fraction of the steps after which connections stay.
    """

    name: ClassVar[str] = "rigl"
    summary: ClassVar[str] = "train sparse: the smallest go, the steepest come"
    source: ClassVar[str] = "Evci 2020"
    cost: ClassVar[str] = "a training a sparsity"
    nested: ClassVar[bool] = False
    every: int | None = None
    fraction: float = 0.3
    until: float = 0.75

    def __post_init__(self) -> None:
        check(self.every, self.fraction, self.until)

    def search(self, problem: Problem) -> Outcome:
        """Train with exchanges, once for each sparsity."""
        return search_dynamically(
            problem,
            self.name,
            every=self.every,
            until=self.until,
            moves=self._fraction,
            grow=lambda gradient, _: gradient.abs(),
        )

    def _fraction(self, done: float) -> float:
        return self.fraction / 2 * (1 + math.cos(math.pi * min(1.0, done / self.until)))
