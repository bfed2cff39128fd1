"""Continuous sparsification: a soft mask that hardens, learnt together with the weights.

Savarese, Silva and Maire, "Winning the lottery with continuous sparsification" (NeurIPS 2020). The
closest relative of AP: the mask is σ(β·s), with one temperature for both passes that is annealed,
β = β_T^(t/T), and a penalty λ·Σσ(β·s). Where the paper takes the connections with s > 0, as many as come
out, this takes those with the largest s, as many as were asked for.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from aprune.connections import fold, parametrise
from aprune.errors import SettingError, is_number
from aprune.initialise import initialise
from aprune.maths.schedules import find_schedule
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import Hook, Recipe, fit, no_more_than_captured
from aprune.training.state import State

# beyond, σ is 0 in 32 bits, which the mask would be divided by, or 1, where it has no slope
_LEAST, _MOST = -80.0, 16.0


@dataclass(frozen=True)
class Continuous(Method):
    """Continuous sparsification.

    Attributes:
        beta: The inverse temperature β_T at the last step; it starts at 1.
        start: Where s starts. The mask is divided by its value there, so that weights start as they
            are drawn.
        penalty: λ, on every connection.
    """

    name: ClassVar[str] = "continuous"
    summary: ClassVar[str] = "mask and weights together, one sigmoid that hardens"
    source: ClassVar[str] = "Savarese 2020"
    cost: ClassVar[str] = "a training"
    beta: float = 200.0
    start: float = 0.0
    penalty: float = 1e-8

    def __post_init__(self) -> None:
        if not is_number(self.beta) or self.beta <= 1:
            raise SettingError(f"beta is {self.beta!r}: expected a number above 1")
        if not is_number(self.start, least=_LEAST) or self.start > _MOST:
            raise SettingError(
                f"start is {self.start!r}: expected a number from {_LEAST:g} to {_MOST:g}"
            )
        if not is_number(self.penalty, least=0.0):
            raise SettingError(f"penalty is {self.penalty!r}: expected a number from 0 on")

    def search(self, problem: Problem) -> Outcome:
        """Learn s and the weights together; all sparsities come from the last s."""
        model, recipe = problem.model, problem.recipe
        initialise(model, scheme="he", seed=problem.seed)
        beta = torch.ones((), device=problem.task.train_labels.device)
        layers = {
            name: _Soft(weight.detach(), self.start, beta)
            for name, weight in problem.connections.items()
        }
        for name, layer in layers.items():
            parametrise(model, name, layer)
        hook = _Anneal(self, list(layers.values()), beta, recipe)
        curve = fit(
            model,
            problem.task,
            recipe,
            seed=problem.seed,
            hooks=[hook],
            engine=no_more_than_captured(problem.engine),
            title="continuous sparsification",
            progress=problem.progress,
        )
        fold(model, problem.names)
        masks = problem.keep_best({name: layer.s.detach() for name, layer in layers.items()})
        return Outcome(masks, problem.states(masks), [curve], recipe=recipe)


class _Soft(nn.Module):
    """A parametrisation that shows θ∘σ(β·s), over the mask's value at the start."""

    s: Tensor
    beta: Tensor

    def __init__(self, weight: Tensor, start: float, beta: Tensor) -> None:
        super().__init__()
        # no parameter: the optimiser of the weights would let it decay
        self.register_buffer("s", torch.full_like(weight, start).requires_grad_())
        self.register_buffer("beta", beta)
        self.scale = 1 / torch.sigmoid(torch.tensor(start)).item()

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.scale * torch.sigmoid(self.beta * self.s))


class _Anneal(Hook):
    """Sets β, and moves s by SGD with the learning rate and momentum of the recipe."""

    def __init__(
        self, method: Continuous, layers: list[_Soft], beta: Tensor, recipe: Recipe
    ) -> None:
        self.method, self.layers, self.beta, self.recipe = method, layers, beta, recipe
        self.schedule = find_schedule(recipe.schedule)
        self.lr = torch.zeros_like(beta)
        self.velocities = [torch.zeros_like(layer.s) for layer in layers]

    def before(self, step: int) -> None:
        steps = self.recipe.steps
        self.beta.fill_(self.method.beta ** (step / max(1, steps - 1)))
        self.lr.fill_(self.recipe.lr * self.schedule(step, steps))

    def state(self) -> State:
        return {str(number): velocity for number, velocity in enumerate(self.velocities)}

    def load_state(self, state: State) -> None:
        for number, velocity in enumerate(self.velocities):
            velocity.copy_(state[str(number)])

    @torch.no_grad()
    def on_update(self) -> None:
        for layer, velocity in zip(self.layers, self.velocities, strict=True):
            assert layer.s.grad is not None
            soft = torch.sigmoid(self.beta * layer.s)
            slope = layer.s.grad + self.method.penalty * self.beta * soft * (1 - soft)
            velocity.mul_(self.recipe.momentum).add_(slope)
            layer.s -= self.lr * velocity
            layer.s.grad = None
