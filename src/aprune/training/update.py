"""What moves the weights once their gradients are there."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from aprune.training.recipe import Recipe
from aprune.training.state import check_alike, part_of


class Update(Protocol):
    """Moves the weights of a network along their gradients.

    `forget` and `move` are part of a step and may be captured: they wait for nothing.

    Attributes:
        lr: The learning rate, on the device; whoever trains sets it before each step.
    """

    lr: Tensor

    def start(self) -> None:
        """Forget all steps of an earlier training."""

    def begin(self) -> None:
        """Take notice that weights or masks may have changed from outside, or other steps begin."""

    def forget(self) -> None:
        """Forget the gradients of the step before."""

    def move(self) -> None:
        """Clip the gradients and move the weights."""

    def settle(self) -> None:
        """Take notice that a step was recorded and will be replayed, with gradients where they are."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights of which the layers hold shadows, by name."""

    def state(self) -> dict[str, Tensor]:
        """Return what is kept from step to step beside the weights: the tensors in use."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state, in place."""


class PlainUpdate:
    """PyTorch's own clipping and optimisers."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.clip = recipe.clip
        self.lr = torch.tensor(recipe.lr, device=next(model.parameters()).device)
        self.optimiser = _optimiser(self.parameters, recipe, self.lr)
        self._resumed = False

    def start(self) -> None:
        """Set momenta to zero where they are; before the first step there are none."""
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()

    def begin(self) -> None:
        """Nothing is kept beside the weights themselves."""

    def forget(self) -> None:
        """Forget the gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def move(self) -> None:
        """Clip, and take the optimiser's step."""
        if self._resumed:
            self._complete()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.optimiser.step()

    def settle(self) -> None:
        """PyTorch knows where the gradients are."""

    def weights(self) -> Mapping[str, Tensor]:
        """There are no shadows."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return the momenta, by the number of the parameter; before the first step there are none."""
        return {
            f"{number}/{name}": value
            for number, parameter in enumerate(self.parameters)
            for name, value in self.optimiser.state.get(parameter, {}).items()
            if value is not None
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put momenta where they are in memory, or where PyTorch would make them."""
        self.start()
        self._resumed = True
        for number, parameter in enumerate(self.parameters):
            given = part_of(state, str(number))
            if not given:
                continue
            like = self._momenta(parameter)
            check_alike(given, like)
            kept = self.optimiser.state[parameter]
            for name, value in given.items():
                if kept.get(name) is None:
                    kept[name] = torch.empty_like(like[name], dtype=value.dtype)
                kept[name].copy_(value)

    def _complete(self) -> None:
        """Add what is missing after a state that somebody made up: PyTorch wants all momenta or none."""
        self._resumed = False
        for parameter in self.parameters if self.state() else ():
            if parameter.grad is None:
                continue
            for name, like in self._momenta(parameter).items():
                if self.optimiser.state[parameter].get(name) is None:
                    self.optimiser.state[parameter][name] = torch.zeros_like(like)

    def _momenta(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return tensors such as PyTorch's optimiser keeps of a parameter."""
        if isinstance(self.optimiser, torch.optim.SGD):
            return {"momentum_buffer": parameter.detach()}
        return dict.fromkeys(("exp_avg", "exp_avg_sq"), parameter.detach()) | {"step": self.lr}


def _optimiser(
    parameters: Sequence[nn.Parameter], recipe: Recipe, lr: Tensor
) -> torch.optim.Optimizer:
    group = [{"params": parameters}]  # which may be empty, where everything is frozen
    if recipe.optimiser == "adam":
        return torch.optim.AdamW(
            group, lr, weight_decay=recipe.weight_decay, fused=True, capturable=lr.is_cuda
        )
    return torch.optim.SGD(
        group,
        lr,  # a tensor, so that a captured step reads its present value
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
