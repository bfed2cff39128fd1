"""Connections chosen at random: what every other method has to beat."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from aprune.errors import SettingError
from aprune.maths.select import choose_random, keep_count, spread_evenly
from aprune.methods.protocol import Masks, Outcome
from aprune.tasks import Task
from aprune.training import EngineName, Recipe


@dataclass(frozen=True)
class Random:
    """Random connections.

    Attributes:
        spread: `layer` keeps the same fraction of every layer; `global` draws from all connections
            together, so that layer densities vary by chance.
    """

    name: ClassVar[str] = "random"
    spread: Literal["layer", "global"] = "layer"

    def __post_init__(self) -> None:
        if self.spread not in ("layer", "global"):
            raise SettingError(f"spread is {self.spread!r}: expected layer or global")

    @property
    def needs_weights(self) -> bool:
        """Return whether the parent's own weights are used."""
        return False

    def search(
        self,
        model: nn.Module,
        connections: Sequence[str],
        task: Task,  # noqa: ARG002
        sparsities: Sequence[float],
        *,
        recipe: Recipe,  # noqa: ARG002
        seed: int,
        weights: bool = False,
        engine: EngineName = "auto",  # noqa: ARG002
        progress: bool | None = None,  # noqa: ARG002
    ) -> Outcome:
        """Draw the masks; nothing is trained."""
        if weights:
            raise SettingError("random trains nothing, so it has no weights to keep")
        parameters = dict(model.named_parameters())
        shapes = {name: tuple(parameters[name].shape) for name in connections}
        return Outcome({s: self._draw(shapes, s, seed) for s in sparsities})

    def _draw(self, shapes: dict[str, tuple[int, ...]], sparsity: float, seed: int) -> Masks:
        generator = torch.Generator().manual_seed(seed)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        total = sum(sizes.values())
        kept = keep_count(total, sparsity)
        if self.spread == "layer":
            return choose_random(shapes, spread_evenly(sizes, kept), generator)
        everything = choose_random({"all": (total,)}, {"all": kept}, generator)["all"]
        parts = everything.split(list(sizes.values()))
        return {name: part.view(shapes[name]) for name, part in zip(sizes, parts, strict=True)}
