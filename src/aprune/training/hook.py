"""What may happen around a training step, and what does under a fixed mask."""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from aprune.training.state import State


class Hook:
    """What may happen around a step; every place does nothing by default.

    `before` and `after` run on the host, once a step. `on_gradient` and `on_update` are part of the
    step itself and may be captured: they use tensors only, and wait for nothing.
    """

    def before(self, step: int) -> None:
        """Set what the coming step reads."""

    def on_gradient(self) -> None:
        """Change the gradients before they are clipped and used."""

    def on_update(self) -> None:
        """Follow the update of the weights."""

    def after(self, step: int) -> None:
        """Look at what the step did."""

    @property
    def phase(self) -> Hashable:
        """What kind of step comes next; steps of one phase do the same things."""
        return None

    def check(self, step: int) -> None:
        """Raise if numbers went wrong; called every now and then."""

    def state(self) -> State:
        """Return what it remembers from step to step, beside the network: see `checkpoint.State`."""
        return {}

    def load_state(self, state: State) -> None:
        """Remember that again."""


class KeepMasked(Hook):
    """Keeps the weights outside an architecture at exactly zero, whatever the optimiser.

    Their gradients are masked, θ ← θ − β·m∘∇L, so that they enter neither clipping nor momentum, and
    the weights themselves after each update, so that no optimiser can revive one.
    """

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]) -> None:
        parameters = dict(model.named_parameters())
        self.weights: list[Tensor] = [parameters[name] for name in masks]
        # like the weight in memory too: both are read side by side at every step
        self.masks = [torch.empty_like(weight) for weight in self.weights]
        self.load(masks)

    def load(self, masks: Mapping[str, Tensor]) -> None:
        """Take over other masks of the same weights, where these are in memory."""
        for mine, name in zip(self.masks, masks, strict=True):
            mine.detach_().copy_(masks[name])
        self.on_update()

    def on_gradient(self) -> None:
        """Mask the gradients."""
        pairs = [
            (weight.grad, mask)
            for weight, mask in zip(self.weights, self.masks, strict=True)
            if weight.grad is not None
        ]
        if pairs:  # none if the user froze all of them
            torch._foreach_mul_([grad for grad, _ in pairs], [mask for _, mask in pairs])

    def on_update(self) -> None:
        """Mask the weights."""
        if self.weights:
            with torch.no_grad():
                torch._foreach_mul_(self.weights, self.masks)
