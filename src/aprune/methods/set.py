"""SET: train a random sparse network, and now and then put the smallest weights elsewhere at random.

Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity
inspired by network science" (Nature Communications 2018).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aprune.methods.dynamic import Dynamic


@dataclass(frozen=True)
class SET(Dynamic):
    """Sparse evolutionary training.

    Attributes:
        every: Steps between two exchanges; None makes 50 of them, or as many as there is room for.
        fraction: Of the connections of a layer that are exchanged.
        until: Fraction of the steps after which connections stay.
    """

    name: ClassVar[str] = "set"
    summary: ClassVar[str] = "train sparse: the smallest go, random ones come"
    source: ClassVar[str] = "Mocanu 2018"

    def grow(self, gradient: Tensor, generator: torch.Generator) -> Tensor:
        """Return random scores."""
        return torch.rand(gradient.shape, generator=generator, device=gradient.device)
