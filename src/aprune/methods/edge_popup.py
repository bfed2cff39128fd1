"""Edge-popup: weights stay random, and learnt scores say which of them are there.

Ramanujan, Wortsman, Kembhavi, Farhadi and Rastegari, "What's hidden in a randomly weighted neural
network?" (CVPR 2020). In every layer the connections with the largest |s| are on; the gradient goes to s
as if all were. Weights are constants with random signs, and are never trained; nor are biases and norms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aprune.connections import Masks, fold, masked_state, parametrise
from aprune.initialise import initialise
from aprune.maths.seed import derive_seed
from aprune.maths.select import keep_by_layer, spread_evenly
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import Curve, fit, no_more_than_captured


@dataclass(frozen=True)
class EdgePopup(Method):
    """Edge-popup; the same fraction of every layer is kept."""

    name: ClassVar[str] = "edge_popup"
    summary: ClassVar[str] = "scores learnt over random weights"
    source: ClassVar[str] = "Ramanujan 2020"
    cost: ClassVar[str] = "a training a sparsity"
    nested: ClassVar[bool] = False

    @property
    def rewinds(self) -> bool:
        """Return False: its weights are never trained, and all of one size."""
        return False

    def search(self, problem: Problem) -> Outcome:
        """Train the scores, once for each sparsity."""
        masks: dict[float, Masks] = {}
        states: dict[float, dict[str, Tensor]] = {}
        curves: list[Curve] = []
        sizes = {name: math.prod(shape) for name, shape in problem.shapes.items()}
        for sparsity in problem.sparsities:
            kept = spread_evenly(sizes, problem.kept(sparsity))
            scores, curve = self._train(problem, kept, f"edge_popup, sparsity {sparsity:g}")
            curves.append(curve)
            masks[sparsity] = keep_by_layer(scores, kept)
            if problem.weights:
                states[sparsity] = masked_state(problem.model, masks[sparsity])
        count = len(curves)
        return Outcome(masks, states, curves, searches=count, recipe=problem.recipe, trained=True)

    def _train(
        self, problem: Problem, kept: Mapping[str, int], title: str
    ) -> tuple[dict[str, Tensor], Curve]:
        """Return |s| after training; the network is left with the connections that are on."""
        model, seed = problem.model, problem.seed
        initialise(model, scheme="he", seed=seed)
        model.requires_grad_(False)
        layers = {}
        for name, weight in problem.connections.items():
            _make_constant(weight.data, kept[name] / weight.numel())
            generator = torch.Generator(weight.device).manual_seed(derive_seed(seed, "s", name))
            layers[name] = Popup(draw_scores(weight.data, generator), kept[name])
            parametrise(model, name, layers[name])
        curve = fit(
            model,
            problem.task,
            problem.recipe,
            seed=seed,
            engine=no_more_than_captured(problem.engine),
            title=title,
            progress=problem.progress,
        )
        fold(model, problem.names)
        return {name: layer.scores.detach().abs() for name, layer in layers.items()}, curve


class _KeepTop(torch.autograd.Function):
    """1 for the largest, else 0; the gradient goes straight through."""

    @staticmethod
    def forward(ctx: Any, size: Tensor, kept: int) -> Tensor:  # noqa: ARG004
        if kept == 0:
            return torch.zeros_like(size)
        least = size.flatten().topk(kept, sorted=False).values.min()  # quicker than a whole sort
        return (size >= least).to(size.dtype)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad[0], None


class Popup(nn.Module):
    """A parametrisation that shows the weights with the largest scores."""

    def __init__(self, scores: Tensor, kept: int) -> None:
        super().__init__()
        self.scores, self.kept = nn.Parameter(scores), kept

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weights that are on; the others are zero."""
        on: Tensor = _KeepTop.apply(self.scores.abs(), self.kept)  # type: ignore[no-untyped-call]
        return weight * on


def _make_constant(weight: Tensor, density: float) -> None:
    """Give all weights of a layer one magnitude, which makes up for those that are off."""
    size = weight.square().mean().sqrt() / math.sqrt(max(density, 1 / weight.numel()))
    weight.copy_(weight.sign() * size)


def draw_scores(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Return what the scores of a layer start from."""
    bound = 1 / math.sqrt(max(1, weight[0].numel()))
    return torch.empty_like(weight).uniform_(-bound, bound, generator=generator)
