"""Iterative magnitude pruning with rewinding.

Frankle and Carbin, "The lottery ticket hypothesis" (ICLR 2019): train, remove the smallest weights over
all layers together, put the rest back to where they started, repeat. With `rewind` the weights go back
to an early step instead of to the start (Frankle et al., "Linear mode connectivity", ICML 2020).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from aprune.connections import Masks, masked_state
from aprune.errors import SettingError, check_whole
from aprune.initialise import initialise
from aprune.maths.schedules import reached, sparsities_of_rounds
from aprune.maths.select import shrink
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import Curve, Hook, choose_engine
from aprune.training.masked import Lane
from aprune.training.state import State, check_alike


@dataclass(frozen=True)
class IMP(Method):
    """Iterative magnitude pruning.

    Attributes:
        rounds: How often to train and prune; each keeps the same fraction of what is left.
        rewind: The step whose weights every round starts from; 0 is the initial weights.
        steps: Training steps of one round; None shares those of the recipe out among the rounds, so
            that the whole search costs as much as one of AP's.
    """

    name: ClassVar[str] = "imp"
    summary: ClassVar[str] = "train, drop the smallest weights, rewind, repeat"
    source: ClassVar[str] = "Frankle 2019, 2020"
    cost: ClassVar[str] = "a training"
    rounds: int = 5
    rewind: int = 0
    steps: int | None = None

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, least=1)
        check_whole("rewind", self.rewind, least=0)
        if self.steps is not None:
            check_whole("steps", self.steps, least=1)

    def search(self, problem: Problem) -> Outcome:
        """Train and prune, round after round; each sparsity is taken in the first round to reach it."""
        model, seed = problem.model, problem.seed
        shared = max(1, problem.recipe.steps // self.rounds)
        recipe = problem.recipe.but(steps=shared if self.steps is None else self.steps)
        if self.rewind >= recipe.steps:
            raise SettingError(
                f"rewind is step {self.rewind}, but a round has only {recipe.steps} steps"
            )
        initialise(model, scheme="he", seed=seed)
        tensors = {name: tensor.detach() for name, tensor in problem.connections.items()}
        masks = {name: torch.ones_like(t, dtype=torch.bool) for name, t in tensors.items()}
        found: dict[float, Masks] = {}
        states: dict[float, dict[str, Tensor]] = {}
        curves: list[Curve] = []
        start = _copy(model)
        level = choose_engine(problem.engine, model, self.rounds * recipe.steps)
        lane = Lane(model, engine=level)
        targets = sparsities_of_rounds(problem.sparsities[-1], self.rounds)
        for number, target in enumerate(targets, start=1):
            early = [_Remember(model, self.rewind)] if number == 1 and self.rewind else []
            now = Lane(model, hooks=early, engine=level) if early else lane
            title = f"imp, round {number} of {self.rounds}"
            show = problem.progress
            curves.append(
                now.fit(masks, problem.task, recipe, seed=seed, title=title, progress=show)
            )
            start = early[0].copy if early else start
            sizes = {name: tensor.abs() for name, tensor in tensors.items()}
            for sparsity in reached([s for s in problem.sparsities if s not in found], target):
                found[sparsity] = shrink(masks, sizes, problem.kept(sparsity))
                if problem.weights:
                    states[sparsity] = masked_state(model, found[sparsity])
            masks = shrink(masks, sizes, problem.kept(target))
            model.load_state_dict(start)
        return Outcome(found, states, curves, recipe=recipe)


class _Remember(Hook):
    """Copies the whole state of the network right before one step."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.model, self.step = model, step
        self.copy: dict[str, Tensor] = {}

    def before(self, step: int) -> None:
        if step == self.step:
            self.copy = _copy(self.model)

    def state(self) -> State:
        return dict(self.copy)

    def load_state(self, state: State) -> None:
        if state:
            check_alike(state, self.model.state_dict())
        device = next(self.model.parameters()).device
        self.copy = {name: value.to(device) for name, value in state.items()}


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
