"""SNIP: keep the connections whose removal would change the loss most, before any training.

Lee, Ajanthan and Torr, "SNIP: single-shot network pruning based on connection sensitivity" (ICLR 2019).
With a mask m over the weights θ, the score of a connection is |∂L/∂m| at m = 1, which is |θ·∂L/∂θ|.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F

from aprune.errors import check_whole
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.methods.scores import Norms, add_up, check_norms, differentiate, fresh_batches


@dataclass(frozen=True)
class SNIP(Method):
    """SNIP.

    Attributes:
        batches: Batches of training images that the loss is taken over.
        norms: What batch norms normalise by meanwhile: `batch`, as in training, or `running`, by which
            fresh ones leave everything as it is.
    """

    name: ClassVar[str] = "snip"
    summary: ClassVar[str] = "untrained: what the loss is most sensitive to"
    source: ClassVar[str] = "Lee 2019"
    cost: ClassVar[str] = "1 pass"
    trains: ClassVar[bool] = False
    batches: int = 1
    norms: Norms = field(default="batch", metadata={"unless_default": True})

    def __post_init__(self) -> None:
        check_whole("batches", self.batches, least=1)
        check_norms(self.norms)

    def search(self, problem: Problem) -> Outcome:
        """Score every connection once; all sparsities come from the same scores."""
        weights = problem.connections
        total = add_up(
            differentiate(F.cross_entropy(problem.model(x), y), weights)
            for x, y in fresh_batches(problem, self.batches, self.norms)
        )
        scores = {name: (slope * weights[name].detach()).abs() for name, slope in total.items()}
        return Outcome(problem.keep_best(scores), passes=self.batches)
