"""Magnitude pruning: train once, keep the largest weights.

Han, Pool, Tran and Dally, "Learning both weights and connections for efficient neural networks" (NeurIPS
2015), in one shot. Over all layers together, or the same fraction of each.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.maths.select import keep_by_layer, spread_evenly
from aprune.methods.protocol import Method, Outcome, Problem, masked_state
from aprune.training import fit_masked


@dataclass(frozen=True)
class Magnitude(Method):
    """One-shot magnitude pruning.

    Attributes:
        spread: `global` compares the weights of all layers; `layer` keeps the same fraction of each.
    """

    name: ClassVar[str] = "magnitude"
    summary: ClassVar[str] = "train, keep the largest weights"
    source: ClassVar[str] = "Han 2015"
    cost: ClassVar[str] = "a training"
    spread: Literal["global", "layer"] = "global"

    def __post_init__(self) -> None:
        if self.spread not in ("global", "layer"):
            raise SettingError(f"spread is {self.spread!r}: expected global or layer")

    def search(self, problem: Problem) -> Outcome:
        """Train, then take every sparsity from the same weights."""
        model, recipe = problem.model, problem.recipe
        initialise(model, scheme="he", seed=problem.seed)
        curve = fit_masked(
            model,
            {},
            problem.task,
            recipe,
            seed=problem.seed,
            engine=problem.engine,
            title="magnitude",
            progress=problem.progress,
        )
        scores = {name: weight.detach().abs() for name, weight in problem.connections.items()}
        masks = problem.keep_best(scores)
        if self.spread == "layer":
            sizes = {name: score.numel() for name, score in scores.items()}
            masks = {
                s: keep_by_layer(scores, spread_evenly(sizes, problem.kept(s)))
                for s in problem.sparsities
            }
        states = {s: masked_state(model, m) for s, m in masks.items()} if problem.weights else {}
        return Outcome(masks, states, [curve], recipe=recipe)
