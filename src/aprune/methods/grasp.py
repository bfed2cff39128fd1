"""GraSP: keep the connections that the flow of gradients needs, before any training.

Wang, Zhang and Grosse, "Picking winning tickets before training by preserving gradient flow" (ICLR
2020). Removing θ_i changes ‖g‖², the decrease of the loss at the first step, by −2·θ_i·(H·g)_i to first
order. So the connections with the largest θ·Hg are kept: without them the gradient would be smaller.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aprune.errors import SettingError, check_whole, is_number
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.methods.scores import Norms, add_up, check_norms, differentiate, fresh_batches


@dataclass(frozen=True)
class GraSP(Method):
    """GraSP.

    Attributes:
        batches: Batches of training images that the loss is taken over.
        temperature: What the outputs are divided by before the softmax, so that an untrained network
            is sure of nothing.
        norms: What batch norms normalise by meanwhile: `batch`, as in training, or `running`, by which
            fresh ones leave everything as it is.
    """

    name: ClassVar[str] = "grasp"
    summary: ClassVar[str] = "untrained: what the gradients flow through"
    source: ClassVar[str] = "Wang 2020"
    cost: ClassVar[str] = "3 passes"
    trains: ClassVar[bool] = False
    batches: int = 1
    temperature: float = 200.0
    norms: Norms = field(default="batch", metadata={"unless_default": True})

    def __post_init__(self) -> None:
        check_whole("batches", self.batches, least=1)
        check_norms(self.norms)
        if not is_number(self.temperature):
            raise SettingError(f"temperature is {self.temperature!r}: expected a number above 0")

    def search(self, problem: Problem) -> Outcome:
        """Score every connection once; all sparsities come from the same scores."""
        weights = problem.connections
        batches = fresh_batches(problem, self.batches, self.norms)
        slopes = add_up(differentiate(self._loss(problem, *b), weights) for b in batches)
        bends = add_up(self._bend(problem, slopes, *b) for b in batches)
        scores = {name: (bend * weights[name]).detach() for name, bend in bends.items()}
        # the product with the Hessian is a pass forward and back, and one more
        return Outcome(problem.keep_best(scores), passes=3 * self.batches)

    def _bend(
        self, problem: Problem, slopes: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Return the product of the Hessian with `slopes`."""
        weights = problem.connections
        here = differentiate(self._loss(problem, x, y), weights, again=True)
        along = torch.stack([(slopes[name] * slope).sum() for name, slope in here.items()]).sum()
        return differentiate(along, weights)

    def _loss(self, problem: Problem, x: Tensor, y: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # of attention that can be differentiated twice
            return F.cross_entropy(problem.model(x) / self.temperature, y)
