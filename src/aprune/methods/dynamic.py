"""Training under a mask that changes on the way: what `SET` and `RigL` have in common.

Every so often the smallest weights of each layer go, and as many connections come in elsewhere in the
layer, with weights of zero. The number of connections of a layer stays what it was at the start.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aprune.connections import Masks, masked_state
from aprune.errors import SettingError, TrainingError, check_whole, is_number
from aprune.initialise import initialise
from aprune.maths.seed import derive_seed
from aprune.maths.select import keep_largest
from aprune.methods.erk import draw_erk
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import Curve, KeepMasked, fit, no_more_than_captured
from aprune.training.state import State

Grow = Callable[[Tensor, torch.Generator], Tensor]
"""From the gradient of a layer to scores: the connections with the largest come in."""


_EXCHANGES = 50  # in a search that leaves their number open


@dataclass(frozen=True)
class Dynamic(Method):
    """Settings and search of such a method; a subclass says what comes in, and how many.

    Attributes:
        every: Steps between two exchanges; None makes 50 of them, or as many as there is room for.
        fraction: Of the connections of a layer that are exchanged.
        until: Fraction of the steps after which connections stay.
    """

    cost: ClassVar[str] = "a training a sparsity"
    nested: ClassVar[bool] = False
    every: int | None = None
    fraction: float = 0.3
    until: float = 0.75

    def __post_init__(self) -> None:
        if self.every is not None:
            check_whole("every", self.every, least=1)
        if not is_number(self.fraction) or self.fraction >= 1:
            raise SettingError(f"fraction is {self.fraction!r}: expected a number between 0 and 1")
        if not is_number(self.until) or self.until > 1:
            raise SettingError(f"until is {self.until!r}: expected a number above 0, and 1 at most")

    def moves(self, done: float) -> float:  # noqa: ARG002
        """Return the fraction of connections to exchange after that fraction of the steps."""
        return self.fraction

    def grow(self, gradient: Tensor, generator: torch.Generator) -> Tensor:
        """Return scores of the connections of a layer: those with the largest come in."""
        raise NotImplementedError

    @property
    def rewinds(self) -> bool:
        """Return False: what was not connected at first had no weight."""
        return False

    def search(self, problem: Problem) -> Outcome:
        """Train with exchanges, once for each sparsity."""
        model, recipe, seed = problem.model, problem.recipe, problem.seed
        masks: dict[float, Masks] = {}
        states: dict[float, dict[str, Tensor]] = {}
        curves: list[Curve] = []
        for sparsity in problem.sparsities:
            start = draw_erk(problem, sparsity)
            initialise(model, start, seed=seed)
            hook = _Exchange(self, problem, start)
            curves.append(
                fit(
                    model,
                    problem.task,
                    recipe,
                    seed=seed,
                    hooks=[hook],
                    engine=no_more_than_captured(problem.engine),
                    title=f"{self.name}, sparsity {sparsity:g}",
                    progress=problem.progress,
                )
            )
            masks[sparsity] = {
                name: mask.bool() for name, mask in zip(start, hook.masks, strict=True)
            }
            if problem.weights:
                states[sparsity] = masked_state(model, masks[sparsity])
        count = len(curves)
        return Outcome(masks, states, curves, searches=count, recipe=recipe, trained=True)


class _Exchange(KeepMasked):
    """Keeps the weights outside the mask at zero, and exchanges connections every so often."""

    def __init__(self, method: Dynamic, problem: Problem, masks: Masks) -> None:
        device = problem.task.train_labels.device
        super().__init__(problem.model, {name: mask.to(device) for name, mask in masks.items()})
        self.method, self.steps = method, problem.recipe.steps
        self.last = round(method.until * self.steps)
        self.every = method.every or max(1, math.ceil(self.last / _EXCHANGES))
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        seed = derive_seed(problem.seed, "exchange")
        self.generator = torch.Generator(device).manual_seed(seed)

    def on_gradient(self) -> None:
        """Note the gradients of all connections, those that are not there too, then mask them."""
        for noted, weight in zip(self.gradients, self.weights, strict=True):
            if weight.grad is not None:
                noted.copy_(weight.grad)
        super().on_gradient()

    def state(self) -> State:
        """Return the present masks, and where the random numbers are."""
        masks = {str(number): mask for number, mask in enumerate(self.masks)}
        return {**masks, "generator": self.generator.get_state()}

    def load_state(self, state: State) -> None:
        """Go on with them."""
        for number, mask in enumerate(self.masks):
            mask.copy_(state[str(number)])
        self.generator.set_state(state["generator"])

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Exchange connections if it is time."""
        done = step + 1
        if done % self.every or done >= self.last:
            return
        if not all(bool(gradient.isfinite().all()) for gradient in self.gradients):
            raise TrainingError(
                f"a gradient is not finite at step {step} of {self.steps}: try a smaller learning rate"
            )
        fraction, grow = self.method.moves(done / self.steps), self.method.grow
        for weight, mask, gradient in zip(self.weights, self.masks, self.gradients, strict=True):
            mask.copy_(exchange(weight, mask.bool(), gradient, fraction, grow, self.generator))
        self.on_update()


def exchange(
    weight: Tensor,
    mask: Tensor,
    gradient: Tensor,
    fraction: float,
    grow: Grow,
    generator: torch.Generator,
) -> Tensor:
    """Return the mask of one layer after an exchange.

    Example:
        >>> weight, gradient = torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 2.0, 5.0])
        >>> there, numbers = weight != 0, torch.Generator()
        >>> exchange(weight, there, gradient, 0.5, lambda g, _: g.abs(), numbers).tolist()
        [True, False, False, True]
    """
    there = int(mask.sum())
    moved = min(math.floor(fraction * there), mask.numel() - there)
    if moved == 0:
        return mask
    size = torch.where(mask, weight.abs(), -torch.inf)
    stays = keep_largest({"": size}, there - moved)[""]
    # what has just gone may not come straight back
    wanted = torch.where(mask, -torch.inf, grow(gradient, generator))
    return stays | keep_largest({"": wanted}, moved)[""]
