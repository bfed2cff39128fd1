"""SynFlow: keep the connections that carry most from input to output, whatever the images are.

Tanaka, Kunin, Yamins and Ganguli, "Pruning neural networks without any data by iteratively conserving
synaptic flow" (NeurIPS 2020). R is the sum of the outputs of the network with all weights replaced by
their magnitudes, on an image of ones; the score of a connection is θ·∂R/∂θ. Scores are taken anew in
many rounds, each of which keeps the same fraction: that is what keeps layers from going empty.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch

from aprune.connections import Masks
from aprune.errors import check_whole
from aprune.initialise import initialise
from aprune.maths.schedules import reached, sparsities_of_rounds
from aprune.maths.select import shrink
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.methods.scores import differentiate
from aprune.progress import bar


@dataclass(frozen=True)
class SynFlow(Method):
    """SynFlow.

    Attributes:
        rounds: How often to score and prune.
    """

    name: ClassVar[str] = "synflow"
    summary: ClassVar[str] = "untrained, no images: what carries most"
    source: ClassVar[str] = "Tanaka 2020"
    cost: ClassVar[str] = "100 passes"
    trains: ClassVar[bool] = False
    looks: ClassVar[bool] = False
    rounds: int = 100

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, least=1)

    def search(self, problem: Problem) -> Outcome:
        """Score and prune; each sparsity is taken in the first round to reach it."""
        initialise(problem.model, scheme="he", seed=problem.seed)
        # the flow through 19 layers of 512 channels is too much for 32 bits
        twin = copy.deepcopy(problem.model).double().eval()
        parameters = dict(twin.named_parameters())
        weights = {name: parameters[name].requires_grad_() for name in problem.names}
        for parameter in parameters.values():
            parameter.data.abs_()
        image = torch.ones((1, *problem.task.shape)).to(next(iter(weights.values())))
        masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in weights.items()}
        found: dict[float, Masks] = {}
        targets = sparsities_of_rounds(problem.sparsities[-1], self.rounds)
        with bar("synflow", self.rounds, show=problem.progress) as advance:
            for target in targets:
                flow = differentiate(twin(image).sum(), weights)
                scores = {name: slope * weights[name].data for name, slope in flow.items()}
                for sparsity in reached([s for s in problem.sparsities if s not in found], target):
                    found[sparsity] = shrink(masks, scores, problem.kept(sparsity))
                masks = shrink(masks, scores, problem.kept(target))
                for name, mask in masks.items():
                    weights[name].data.mul_(mask)
                advance(1)
        return Outcome(found, passes=self.rounds)
