"""One step of w: the warm gradient, and the drift towards −1 that makes the mask sparser.

    w ← w − α·g − δ·(1 + w),     δ = 2αγ          (paper, "Enforcing sparsity", with the sign corrected)

A connection is on after the step if (w − α·g)/(1 + w) > δ. So the smallest γ that leaves k connections
on is read off the (k + 1)-th largest of these ratios: no tuning, no feedback loop. They are taken with
the α of the step before, which is hardly another; so they can be looked at while the present one is
still being worked out from all gradients. Where it is quite another, because the gradients have jumped,
the step has no drift.

Connections of a layer may also move together, by λ times the mean of their gradients but by no more
than twice the size of a step. The next step's drift makes up for what that turns on or off.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from aprune.descent.theory import Recorder

_SAMPLE = 2**16  # ratios looked at to choose γ; all of them in networks with no more connections
_NEVER = 2**62  # a step that does not come


class Descent:
    """The tensors w, and everything that one step of them reads and writes.

    All numbers stay on the device, so that a step waits for nothing and can be captured.

    Attributes:
        total: The number of connections.
        places: Which runs of neighbours in memory are looked at in each tensor; None means all.
        run: How many connections one is.
        chooses_gamma: Whether each step chooses γ.
        gamma: The γ of all steps; 0 if each chooses its own.
        layer_share: The λ by which the mean gradient of a layer moves all of it.
        relative: Whether the step size is one in units of the gradient's root mean square.
        memory: How much of the running mean square a step keeps.
        jump: Times by which a smaller step than the one before is quite another.
        floats: Step size, whether connections go, running mean square and how much of it there is.
        counts: How many ratios are to be larger than the drift, the steps so far, the first bad one.
        recorder: Sees every step before it is done, if there is one.
    """

    run = 4
    memory = 0.99
    jump = 2.0
    most = 2.0  # steps that a layer moves as a whole

    def __init__(
        self,
        w: Sequence[Tensor],
        *,
        relative: bool,
        gamma: float | None,
        layer_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.w = list(w)
        self.total = sum(tensor.numel() for tensor in self.w)
        self.places = [_sample(tensor, self.total, seed + i) for i, tensor in enumerate(self.w)]
        self.chooses_gamma = gamma is None
        self.relative, self.gamma, self.layer_share = relative, gamma or 0.0, float(layer_share)
        self._looked = sum(
            w.numel() if places is None else len(places) * self.run
            for w, places in zip(self.w, self.places, strict=True)
        )
        self._indices = [
            None if places is None else _indices(w, places)
            for w, places in zip(self.w, self.places, strict=True)
        ]
        device = self.w[0].device
        self.floats = torch.zeros(4, device=device)
        self.counts = torch.tensor([0, 0, _NEVER], device=device)
        self._step_size, self._goes, self._mean_square, self._weight = self.floats.unbind()
        self._place, self._steps, self._first_bad = self.counts.split(1)
        self._alpha = torch.zeros((), device=device)  # of the step before
        self._one = torch.ones((), device=device)
        self._never = torch.full((), _NEVER, device=device)
        self.recorder: Recorder | None = None

    def aim(self, step_size: float, keep: float) -> None:
        """Tell the coming step its size and, if it chooses γ, the density to come down to.

        The size is α, or α times the root mean square of the gradient if it is relative.
        """
        self._step_size.fill_(step_size)
        if self.chooses_gamma:
            rank = round(keep * self._looked)
            self._place.fill_(min(rank, self._looked - 1))
            self._goes.fill_(float(rank < self._looked))

    @torch.no_grad()
    def update(self) -> None:
        """Take one step along the gradients in `w.grad` and forget them."""
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.w]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum() / self.total
        alpha = self._size(square)
        if self.recorder is not None:
            self.recorder.note(alpha, gradients)
        drift = self._drift(alpha, gradients) if self.chooses_gamma else 2 * alpha * self.gamma
        for w, gradient in zip(self.w, gradients, strict=True):
            w.lerp_(-self._one, drift)
            w.addcmul_(gradient, -alpha)
            if self.layer_share:
                most = self.most * self._step_size
                w.sub_((self.layer_share * alpha * gradient.mean()).clamp(-most, most))
            w.grad = None

    def _size(self, square: Tensor) -> Tensor:
        """Return α of this step from the mean square of the gradients.

        If it is relative it is divided by their root mean square, guarded against zero. The larger of
        the running and the present one counts: when the loss jumps, so does the gradient, and a running
        mean alone would let w leap just when it should hold still.
        """
        bad = torch.where(square < torch.inf, self._never, self._steps)
        torch.minimum(self._first_bad, bad, out=self._first_bad)
        self._steps += 1
        if not self.relative:
            return self._step_size
        self._mean_square.lerp_(square, 1 - self.memory)
        self._weight.lerp_(self._one, 1 - self.memory)
        root = torch.maximum(self._mean_square / self._weight, square).sqrt()
        return torch.where(root > 0, self._step_size / root, 0.0)

    def _drift(self, alpha: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """Return δ of this step: the smallest that leaves as many connections on as there shall be."""
        here, slope = self._look(self.w), self._look(gradients)
        ratios = torch.where(here > -1, (here - self._alpha * slope) / (1 + here), -torch.inf)
        if ratios.is_cuda:
            # there reading the place would wait for the device, and sorting is quick
            drift = ratios.sort(descending=True).values.index_select(0, self._place)[0]
        else:
            place = len(ratios) - 1 - int(self._place)
            # several times as fast as kthvalue, which took a third of a step
            drift = torch.from_numpy(np.partition(ratios.numpy(), place))[place]
        drift = _shorten(drift.clamp(0.0, 1.0))
        drift = torch.where(alpha * self.jump < self._alpha, 0.0, drift)
        self._alpha.copy_(alpha)
        return drift * self._goes

    def state(self) -> dict[str, Tensor]:
        """Return what is kept from step to step beside w: the tensors in use."""
        state = {"floats": self.floats, "counts": self.counts, "alpha": self._alpha}
        return state if self.recorder is None else {**state, "seen": self.recorder.seen}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    @property
    def first_bad(self) -> int | None:
        """Return the first step whose gradient was not finite, if there was one."""
        step = int(self._first_bad)
        return step if step < _NEVER else None

    def active(self) -> int:
        """Count the connections that are on now."""
        return int(torch.stack([(w > 0).sum() for w in self.w]).sum())

    def _look(self, tensors: Sequence[Tensor]) -> Tensor:
        pairs = zip(tensors, self._indices, strict=True)
        return torch.cat([t.reshape(-1) if here is None else t[here] for t, here in pairs])


def _shorten(number: Tensor) -> Tensor:
    """Leave away the last ten bits, of which a sample knows nothing."""
    return (number.view(torch.int32) & -1024).view(torch.float32)


def _sample(w: Tensor, total: int, seed: int) -> Tensor | None:
    """Return random runs in `w`, as many as its size asks for; None means all of them.

    Neighbours in memory cost no more to read than one of them.
    """
    runs = w.numel() // Descent.run
    if total <= _SAMPLE or runs == 0:
        return None
    number = max(1, round(_SAMPLE * w.numel() / total / Descent.run))
    generator = torch.Generator(w.device).manual_seed(seed)
    return torch.randint(0, runs, (number,), generator=generator, device=w.device)


def _indices(w: Tensor, runs: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of the connections of some runs."""
    flat = (runs[:, None] * Descent.run + torch.arange(Descent.run, device=w.device)).flatten()
    outer_first = sorted(range(w.dim()), key=w.stride, reverse=True)
    indices = torch.unravel_index(flat, [w.shape[dim] for dim in outer_first])
    return tuple(indices[outer_first.index(dim)] for dim in range(w.dim()))
