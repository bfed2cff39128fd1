"""Magnitude pruning: train once, keep the largest weights.

Han, Pool, Tran and Dally, "Learning both weights and connections for efficient neural networks" (NeurIPS
2015), in one shot. Over all layers together, or the same fraction of each; after a training, or of the
weights that it would have started from.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.maths.select import keep_by_layer, spread_evenly
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import Curve, fit_masked


@dataclass(frozen=True)
class Magnitude(Method):
    """One-shot magnitude pruning.

    Attributes:
        spread: `global` compares the weights of all layers; `layer` keeps the same fraction of each.
        when: `trained`, or `start` for the initial weights, which costs nothing.
    """

    name: ClassVar[str] = "magnitude"
    summary: ClassVar[str] = "train, keep the largest weights"
    source: ClassVar[str] = "Han 2015"
    cost: ClassVar[str] = "a training"
    spread: Literal["global", "layer"] = "global"
    when: Literal["trained", "start"] = "trained"

    def __post_init__(self) -> None:
        if self.spread not in ("global", "layer"):
            raise SettingError(f"spread is {self.spread!r}: expected global or layer")
        if self.when not in ("trained", "start"):
            raise SettingError(f"when is {self.when!r}: expected trained or start")

    def search(self, problem: Problem) -> Outcome:
        """Train, then take every sparsity from the same weights."""
        model, recipe = problem.model, problem.recipe
        initialise(model, scheme="he", seed=problem.seed)
        curves = [] if self.when == "start" else [_train(problem)]
        scores = {name: weight.detach().abs() for name, weight in problem.connections.items()}
        if self.spread == "global":
            masks = problem.keep_best(scores)
        else:
            sizes = {name: score.numel() for name, score in scores.items()}
            shares = {s: spread_evenly(sizes, problem.kept(s)) for s in problem.sparsities}
            masks = {s: keep_by_layer(scores, share) for s, share in shares.items()}
        return Outcome(masks, problem.states(masks), curves, recipe=recipe if curves else None)


def _train(problem: Problem) -> Curve:
    return fit_masked(
        problem.model,
        {},
        problem.task,
        problem.recipe,
        seed=problem.seed,
        engine=problem.engine,
        title="magnitude",
        progress=problem.progress,
    )
