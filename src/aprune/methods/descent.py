"""One step of w: the warm gradient, and the drift towards −1 that makes the mask sparser.

    w ← w − α·g − δ·(1 + w),     δ = 2αγ          (paper, "Enforcing sparsity", with the sign corrected)

A connection is on after the step if (w − α·g)/(1 + w) > δ. So the smallest γ that leaves k connections
on is read off the (k + 1)-th largest of these ratios: no tuning, no feedback loop.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 2**20  # ratios looked at to choose γ; all of them in networks with no more connections
_MEMORY = 0.99  # of the running mean square


class Descent:
    """The tensors w, and everything that one step of them reads and writes.

    All numbers stay on the device, so that a step waits for nothing and can be captured.

    Attributes:
        step_size: α, or α times the root mean square of the gradient if `relative`.
        keep: The density to come down to, if γ is chosen by the step.
        gamma: γ; set by the step if it is chosen there.
        first_bad: The first step whose gradient was not finite; −1 if none was.
        places: Where in each tensor the ratios are looked at, as indices; None means everywhere.
    """

    def __init__(
        self,
        w: Sequence[Tensor],
        *,
        relative: bool,
        gamma: float | None,
        seed: int = 0,
    ) -> None:
        self.w = list(w)
        self.relative, self.chooses_gamma = relative, gamma is None
        device = self.w[0].device
        self.total = sum(tensor.numel() for tensor in self.w)
        self.step_size = torch.zeros((), device=device)
        self.keep = torch.ones((), device=device, dtype=torch.float64)
        self.gamma = torch.tensor(gamma or 0.0, device=device)
        self.steps = torch.zeros((), device=device, dtype=torch.int64)
        self.first_bad = torch.full((), -1, device=device, dtype=torch.int64)
        self.places = [_sample(tensor, self.total, seed + i) for i, tensor in enumerate(self.w)]
        self._mean_square = torch.zeros((), device=device)
        self._weight = torch.zeros((), device=device)
        self._minus_one = torch.full((), -1.0, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Take one step along the gradients in `w.grad` and forget them."""
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.w]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum() / self.total
        sample = (self._look(self.w), self._look(gradients)) if self.chooses_gamma else None
        alpha, drift = self.decide(square, sample)
        for w, gradient in zip(self.w, gradients, strict=True):
            w.lerp_(self._minus_one, drift)
            w.addcmul_(gradient, -alpha)
            w.grad = None

    def decide(self, square: Tensor, sample: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return α and δ of this step.

        Args:
            square: Mean square of the gradients.
            sample: w and its gradient at `places`, if γ is chosen by the step.
        """
        self._note_if_bad(square)
        alpha = self._relative(square) if self.relative else self.step_size
        if sample is not None:
            drift = self._least_drift(*sample, alpha)
            self.gamma.copy_(torch.where(alpha > 0, drift / (2 * alpha), 0.0))
        else:
            drift = 2 * alpha * self.gamma
        self.steps += 1
        return alpha, drift

    def active(self) -> int:
        """Count the connections that are on now."""
        return int(torch.stack([(w > 0).sum() for w in self.w]).sum())

    def _look(self, tensors: Sequence[Tensor]) -> Tensor:
        pairs = zip(tensors, self.places, strict=True)
        return torch.cat([t.reshape(-1) if places is None else t[places] for t, places in pairs])

    def _relative(self, square: Tensor) -> Tensor:
        """Divide the step size by the root mean square of the gradient, guarded against zero.

        The larger of the running and the present one counts: when the loss jumps, so does the
        gradient, and a running mean alone would let w leap just when it should hold still.
        """
        self._mean_square.lerp_(square, 1 - _MEMORY)
        self._weight.lerp_(torch.ones_like(self._weight), 1 - _MEMORY)
        root = torch.maximum(self._mean_square / self._weight, square).sqrt()
        return torch.where(root > 0, self.step_size / root, 0.0)

    def _least_drift(self, here: Tensor, slope: Tensor, alpha: Tensor) -> Tensor:
        """Return the smallest δ ≥ 0 that leaves a fraction `keep` of the connections on."""
        ratio = (here - alpha * slope) / (1 + here)
        every = torch.where(here > -1, ratio, -torch.inf)
        rank = (self.keep * len(every)).round().long()
        if every.is_cuda:  # where reading the rank would wait for the device, and sorting is quick
            ordered = every.sort(descending=True).values
            drift = ordered[rank.clamp(max=len(every) - 1).reshape(1)][0]
        else:
            place = max(0, len(every) - int(rank) - 1)
            # several times as fast as kthvalue, which took a third of a step
            drift = torch.from_numpy(np.partition(every.numpy(), place))[place]
        return torch.where(rank >= len(every), 0.0, drift).clamp(0.0, 1.0)

    def _note_if_bad(self, square: Tensor) -> None:
        bad = ~square.isfinite() & (self.first_bad < 0)
        self.first_bad.copy_(torch.where(bad, self.steps, self.first_bad))


def _sample(w: Tensor, total: int, seed: int) -> tuple[Tensor, ...] | None:
    """Return random places in `w`, in proportion to its size; None means all of them."""
    if total <= _SAMPLE:
        return None
    number = max(1, round(_SAMPLE * w.numel() / total))
    generator = torch.Generator(w.device).manual_seed(seed)
    flat = torch.randint(0, w.numel(), (number,), generator=generator, device=w.device)
    return torch.unravel_index(flat, w.shape)
