"""RigL: train a sparse network, and now and then put the smallest weights where the gradient is largest.

Evci, Gale, Menick, Castro and Elsen, "Rigging the lottery: making all tickets winners" (ICML 2020).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aprune.methods.dynamic import Dynamic


@dataclass(frozen=True)
class RigL(Dynamic):
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

    def moves(self, done: float) -> float:
        """Return a fraction that falls to zero along a cosine."""
        return self.fraction / 2 * (1 + math.cos(math.pi * min(1.0, done / self.until)))

    def grow(self, gradient: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Return the size of the gradient."""
        return gradient.abs()
