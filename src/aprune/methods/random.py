"""Connections chosen at random: what every other method has to beat."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from aprune.connections import Masks
from aprune.errors import SettingError
from aprune.maths.select import choose_random, spread_evenly
from aprune.methods.protocol import Method, Outcome, Problem


@dataclass(frozen=True)
class Random(Method):
    """Random connections.

    Attributes:
        spread: `layer` keeps the same fraction of every layer; `global` draws from all connections
            together, so that layer densities vary by chance.
    """

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "at random, the same share of every layer"
    source: ClassVar[str] = ""
    cost: ClassVar[str] = "nothing"
    nested: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    looks: ClassVar[bool] = False
    spread: Literal["layer", "global"] = "layer"

    def __post_init__(self) -> None:
        if self.spread not in ("layer", "global"):
            raise SettingError(f"spread is {self.spread!r}: expected layer or global")

    @property
    def rewinds(self) -> bool:
        """Return False: there are no weights to go back to."""
        return False

    def search(self, problem: Problem) -> Outcome:
        """Draw the masks, several at a time where there are cores for it; nothing is trained."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            drawn = pool.map(lambda sparsity: self._draw(problem, sparsity), problem.sparsities)
            return Outcome(dict(zip(problem.sparsities, drawn, strict=True)))

    def _draw(self, problem: Problem, sparsity: float) -> Masks:
        generator = torch.Generator().manual_seed(problem.seed)
        shapes, kept = problem.shapes, problem.kept(sparsity)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        if self.spread == "layer":
            return choose_random(shapes, spread_evenly(sizes, kept), generator)
        everything = choose_random({"all": (problem.total,)}, {"all": kept}, generator)["all"]
        parts = everything.split(list(sizes.values()))
        return {name: part.view(shapes[name]) for name, part in zip(sizes, parts, strict=True)}
