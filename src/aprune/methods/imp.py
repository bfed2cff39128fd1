"""Iterative magnitude pruning with rewinding.

Frankle and Carbin, "The lottery ticket hypothesis" (ICLR 2019): train, remove the smallest weights over
all layers together, put the rest back to where they started, repeat. With `rewind` the weights go back
to an early step instead of to the start (Frankle et al., "Linear mode connectivity", ICML 2020).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.maths.select import keep_count, keep_largest
from aprune.methods.protocol import Masks, Outcome, masked_state
from aprune.tasks import Task
from aprune.training import Curve, EngineName, Hook, Recipe, choose_engine
from aprune.training.masked import Lane


@dataclass(frozen=True)
class IMP:
    """Iterative magnitude pruning.

    Attributes:
        rounds: How often to train and prune; each keeps the same fraction of what is left.
        rewind: The step whose weights every round starts from; 0 is the initial weights.
        steps: Training steps of one round; None shares those of the recipe out among the rounds, so
            that the whole search costs as much as one of AP's.
    """

    name: ClassVar[str] = "imp"
    rounds: int = 5
    rewind: int = 0
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise SettingError(f"rounds is {self.rounds}: expected at least 1")
        if self.rewind < 0:
            raise SettingError(f"rewind is {self.rewind}: expected a step from 0 on")

    @property
    def needs_weights(self) -> bool:
        """Return whether the parent's own weights are used."""
        return False

    def search(
        self,
        model: nn.Module,
        connections: Sequence[str],
        task: Task,
        sparsities: Sequence[float],
        *,
        recipe: Recipe,
        seed: int,
        weights: bool = False,
        engine: EngineName = "auto",
        progress: bool | None = None,
    ) -> Outcome:
        """Train and prune, round after round; each sparsity is taken in the first round to reach it."""
        shared = max(1, recipe.steps // self.rounds)
        recipe = recipe.but(steps=shared if self.steps is None else self.steps)
        if self.rewind >= recipe.steps:
            raise SettingError(
                f"rewind is step {self.rewind}, but a round has only {recipe.steps} steps"
            )
        initialise(model, scheme="he", seed=seed)
        parameters = dict(model.named_parameters())
        tensors = {name: parameters[name].detach() for name in connections}
        total = sum(tensor.numel() for tensor in tensors.values())
        masks = {name: torch.ones_like(t, dtype=torch.bool) for name, t in tensors.items()}
        found: dict[float, Masks] = {}
        states: dict[float, dict[str, Tensor]] = {}
        curves: list[Curve] = []
        passed = -1.0
        start = _copy(model)
        level = choose_engine(engine, model, self.rounds * recipe.steps)
        lane = Lane(model, engine=level)
        for number, target in enumerate(self._targets(sparsities[-1]), start=1):
            early = [_Remember(model, self.rewind)] if number == 1 and self.rewind else []
            now = Lane(model, hooks=early, engine=level) if early else lane
            title = f"imp, round {number} of {self.rounds}"
            curve = now.fit(masks, task, recipe, seed=seed, title=title, progress=progress)
            curves.append(curve)
            start = early[0].state if early else start
            for sparsity in [s for s in sparsities if passed < s <= target]:
                found[sparsity] = _remove_smallest(tensors, masks, keep_count(total, sparsity))
                if weights:
                    states[sparsity] = masked_state(model, found[sparsity])
            masks = _remove_smallest(tensors, masks, keep_count(total, target))
            passed = target
            model.load_state_dict(start)
        return Outcome(found, states, curves, recipe)

    def _targets(self, final: float) -> list[float]:
        """Return the sparsity after each round; the last is `final` to the digit."""
        return [1.0 - (1.0 - final) ** (r / self.rounds) for r in range(1, self.rounds)] + [final]


class _Remember(Hook):
    """Copies the whole state of the network right before one step."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.model, self.step = model, step
        self.state: dict[str, Tensor] = {}

    def before(self, step: int) -> None:
        if step == self.step:
            self.state = _copy(self.model)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _remove_smallest(tensors: Mapping[str, Tensor], masks: Masks, kept: int) -> Masks:
    """Keep the `kept` largest magnitudes; what an earlier round removed stays removed."""
    magnitudes = {
        name: torch.where(masks[name], tensor.abs(), -torch.inf) for name, tensor in tensors.items()
    }
    return keep_largest(magnitudes, kept)
