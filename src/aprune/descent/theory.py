"""What a search measures of Theorem 1 on its way: G, M and the error r of the warm gradient.

Paper, Theorem 1 and the lemma on the error. The gradient with respect to the mask itself,
∂L/∂v = ∂L/∂θ̃ ∘ θ with θ̃ = θ ∘ v, is taken where the masked weight passes it back. It is that of the
step's batch. The penalty is no part of the theorem: r is that of the step w − α·g, without the drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from aprune.maths.bound import error_constant
from aprune.maths.error import step_error


@dataclass(frozen=True)
class Theory:
    """What the steps of w have shown of the constants of Theorem 1.

    Attributes:
        G: The largest ‖∂L/∂v‖ of a step.
        M: The largest |w|, before a step or after it.
        C: What the theorem allows ‖r‖²/G² to be, with this M.
        ratio_mean: The mean ‖r‖² of the steps, over G².
        ratio_max: The largest ‖r‖² of a step, over G²; at most C.
        steps: How many steps w has moved in.
    """

    G: float
    M: float
    C: float
    ratio_mean: float
    ratio_max: float
    steps: int


class Recorder:
    """Notes what `Theory` is made of, step by step, without waiting for the device.

    Args:
        masks: Where the masked weights come from; each shows its weight to a layer.
        w: The mask parameters, in the same order.
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.

    Attributes:
        seen: The squares of G and of the largest r, M, the sum of the squares of r, and the steps.
    """

    def __init__(
        self, masks: Sequence[nn.Module], w: Sequence[Tensor], t_l: float, t_s: float
    ) -> None:
        self._w, self._t_l, self._t_s = list(w), t_l, t_s
        self._slopes: dict[int, Tensor] = {}
        self.seen = torch.zeros(5, device=self._w[0].device)
        for number, mask in enumerate(masks):
            mask.register_forward_hook(partial(self._watch, number))

    def _watch(self, number: int, _: nn.Module, inputs: tuple[Tensor, ...], masked: Tensor) -> None:
        """Ask the masked weight for its gradient, if w gets one too."""
        if masked.requires_grad and self._w[number].requires_grad:
            masked.register_hook(partial(self._add, number, inputs[0].detach()))

    def _add(self, number: int, theta: Tensor, gradient: Tensor) -> None:
        """Add to ∂L/∂v; a weight that is used twice has two parts of it."""
        part = gradient.detach().float() * theta
        before = self._slopes.get(number)
        self._slopes[number] = part if before is None else before + part

    def note(self, alpha: Tensor, gradients: Sequence[Tensor]) -> None:
        """Note the step w − α·g that is about to be done, and forget its ∂L/∂v.

        A step of size zero moves nothing, and nothing is noted of it.
        """
        sums = torch.zeros_like(self.seen)
        safe = torch.where(alpha > 0, alpha, 1.0)
        for number, (w, gradient) in enumerate(zip(self._w, gradients, strict=True)):
            slope = self._slopes.get(number)
            slope = torch.zeros_like(w) if slope is None else slope
            error = step_error(w, gradient, slope, alpha=safe, t_l=self._t_l)
            far = torch.maximum(w.abs().max(), (w - safe * gradient).abs().max())
            squares = torch.stack([slope.square().sum(), error.square().sum()])
            sums[0] += squares[0]
            sums[1] += squares[1]
            sums[2] = torch.maximum(sums[2], far)
        sums[3], sums[4] = sums[1], 1.0
        sums = torch.where(alpha > 0, sums, 0.0)
        self.seen[:3] = torch.maximum(self.seen[:3], sums[:3])
        self.seen[3:] += sums[3:]
        self._slopes.clear()

    def result(self) -> Theory | None:
        """Return what was seen so far; None before the first step of w."""
        square, largest, m, total, steps = self.seen.tolist()
        if steps == 0:
            return None
        scale = square or 1.0  # without any gradient there is no error either
        return Theory(
            G=square**0.5,
            M=m,
            C=error_constant(self._t_l, self._t_s, m),
            ratio_mean=total / steps / scale,
            ratio_max=largest / scale,
            steps=int(steps),
        )
