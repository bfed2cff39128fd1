"""Training under a mask that changes on the way: what `SET` and `RigL` have in common.

Every so often the smallest weights of each layer go, and as many connections come in elsewhere in the
layer, with weights of zero. The number of connections of a layer stays what it was at the start.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from aprune.errors import SettingError, TrainingError
from aprune.initialise import initialise
from aprune.maths.seed import derive_seed
from aprune.maths.select import keep_largest
from aprune.methods.erk import draw_erk
from aprune.methods.protocol import Masks, Outcome, Problem, masked_state
from aprune.training import Curve, KeepMasked, fit, no_more_than_captured

Grow = Callable[[Tensor, torch.Generator], Tensor]
"""From the gradient of a layer to scores: the connections with the largest come in."""


_EXCHANGES = 50  # in a search that leaves their number open


def check(every: int | None, fraction: float, until: float) -> None:
    """Raise if settings make no sense."""
    if every is not None and every < 1:
        raise SettingError(f"every is {every}: expected at least 1 step")
    if not 0 < fraction < 1:
        raise SettingError(f"fraction is {fraction}: expected a number between 0 and 1")
    if not 0 < until <= 1:
        raise SettingError(f"until is {until}: expected a number above 0, and 1 at most")


def search_dynamically(
    problem: Problem,
    title: str,
    *,
    every: int | None,
    until: float,
    moves: Callable[[float], float],
    grow: Grow,
) -> Outcome:
    """Train with exchanges, once for each sparsity.

    Args:
        problem: What to do.
        title: Of the progress bar.
        every: Steps between two exchanges; None makes as many as a short search allows, up to 50.
        until: Fraction of the steps after which connections stay.
        moves: From the fraction of steps done to the fraction of connections to exchange.
        grow: Which connections come in.
    """
    model, recipe, seed = problem.model, problem.recipe, problem.seed
    last = round(until * recipe.steps)
    every = max(1, math.ceil(last / _EXCHANGES)) if every is None else every
    masks: dict[float, Masks] = {}
    states: dict[float, dict[str, Tensor]] = {}
    curves: list[Curve] = []
    for sparsity in problem.sparsities:
        start = draw_erk(problem, sparsity)
        initialise(model, start, seed=seed)
        hook = _Exchange(problem, start, every, last, moves, grow)
        curves.append(
            fit(
                model,
                problem.task,
                recipe,
                seed=seed,
                hooks=[hook],
                engine=no_more_than_captured(problem.engine),
                title=f"{title}, sparsity {sparsity:g}",
                progress=problem.progress,
            )
        )
        masks[sparsity] = {name: mask.bool() for name, mask in zip(start, hook.masks, strict=True)}
        if problem.weights:
            states[sparsity] = masked_state(model, masks[sparsity])
    return Outcome(masks, states, curves, searches=len(curves), recipe=recipe, trained=True)


class _Exchange(KeepMasked):
    """Keeps the weights outside the mask at zero, and exchanges connections every so often."""

    def __init__(
        self,
        problem: Problem,
        masks: Masks,
        every: int,
        last: int,
        moves: Callable[[float], float],
        grow: Grow,
    ) -> None:
        device = problem.task.train_labels.device
        super().__init__(problem.model, {name: mask.to(device) for name, mask in masks.items()})
        self.every, self.last, self.steps = every, last, problem.recipe.steps
        self.moves, self.grow = moves, grow
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        seed = derive_seed(problem.seed, "exchange")
        self.generator = torch.Generator(device).manual_seed(seed)

    def on_gradient(self) -> None:
        """Note the gradients of all connections, those that are not there too, then mask them."""
        for noted, weight in zip(self.gradients, self.weights, strict=True):
            if weight.grad is not None:
                noted.copy_(weight.grad)
        super().on_gradient()

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
        fraction = self.moves(done / self.steps)
        for weight, mask, gradient in zip(self.weights, self.masks, self.gradients, strict=True):
            mask.copy_(exchange(weight, mask.bool(), gradient, fraction, self.grow, self.generator))
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
