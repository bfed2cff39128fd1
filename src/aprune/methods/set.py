"""SET: train a random sparse network, and now and then put the smallest weights elsewhere at random.

Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity
inspired by network science" (Nature Communications 2018).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aprune.methods.dynamic import check, search_dynamically
from aprune.methods.protocol import Method, Outcome, Problem


@dataclass(frozen=True)
class SET(Method):
    """Sparse evolutionary training.

    Attributes:
        every: Steps between two exchanges; None makes 50 of them, or as many as there is room for.
        fraction: Of the connections of a layer that are exchanged.
        until: Fraction of the steps after which connections stay.
    """

    name: ClassVar[str] = "set"
    summary: ClassVar[str] = "train sparse: the smallest go, random ones come"
    source: ClassVar[str] = "Mocanu 2018"
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
            moves=lambda _: self.fraction,
            grow=_at_random,
        )


def _at_random(gradient: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(gradient.shape, generator=generator, device=gradient.device)
