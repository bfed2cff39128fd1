"""Random connections with Erdős–Rényi-kernel densities: small layers stay denser than large ones.

Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity
inspired by network science" (Nature Communications 2018); with the size of kernels in Evci et al.,
"Rigging the lottery" (ICML 2020).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from aprune.connections import Masks
from aprune.maths.select import choose_random, spread_erk
from aprune.methods.protocol import Method, Outcome, Problem


@dataclass(frozen=True)
class ERK(Method):
    """Random connections, with a density for each layer by its shape."""

    name: ClassVar[str] = "erk"
    summary: ClassVar[str] = "at random, small layers denser than large ones"
    source: ClassVar[str] = "Mocanu 2018, Evci 2020"
    cost: ClassVar[str] = "nothing"
    nested: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    looks: ClassVar[bool] = False

    @property
    def rewinds(self) -> bool:
        """Return False: there are no weights to go back to."""
        return False

    def search(self, problem: Problem) -> Outcome:
        """Draw the masks; nothing is trained."""
        return Outcome({s: draw_erk(problem, s) for s in problem.sparsities})


def draw_erk(problem: Problem, sparsity: float) -> Masks:
    """Draw random masks with these densities, on the CPU."""
    counts = spread_erk(problem.shapes, problem.kept(sparsity))
    return choose_random(problem.shapes, counts, torch.Generator().manual_seed(problem.seed))
