"""A search in progress: what `attach` returns, and what `find` trains with."""

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import asdict
from typing import Any, Self

import torch
from torch import Tensor, nn

from aprune.architecture import Architecture
from aprune.architecture.bits import as_tensor, pack, unpack
from aprune.connections import Masks, attach_masks, fold, has_norm, masked_state
from aprune.descent.settings import Settings
from aprune.descent.step import Descent
from aprune.descent.theory import Recorder, Theory
from aprune.errors import EmptyLayerWarning, NetworkWarning, SearchError, SettingError
from aprune.maths.schedules import find_schedule, ramp
from aprune.maths.seed import derive_seed
from aprune.maths.select import keep_count, keep_largest
from aprune.training import Hook
from aprune.training.state import State, check_alike, part_of, with_prefix


class Search(Hook):
    """A search attached to a network.

    It goes through three phases: dense (w stands still), descent (w moves, connections go), frozen
    (the last architecture is reached; the weights train on under exactly that mask).

    The masks are `attached` to the network as parametrisations, and the search moves w along the
    gradients that come through them; or whoever trains lays them over the weights and moves w as
    `step` says.

    Attributes:
        sparsities: What is asked for, in rising order.
        masks: The architectures that were passed, by sparsity.
        weights: The state of the network at each of them, if asked for.
        descent: What a step of w reads and writes.
        count_active: Counts the connections that are on.
        behind: Weights of the network that its layers do not show, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Settings,
        theta: Mapping[str, Tensor],
        w: Mapping[str, Tensor],
        *,
        weights: bool = False,
        attached: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        assert method.steps is not None
        self.sparsities = method.sparsities
        self.method, self.steps = method, method.steps
        self.masks: dict[float, Masks] = {}
        self.weights: dict[float, dict[str, Tensor]] = {}
        self.origin: dict[str, Any] = {}
        self._model, self._keep_weights = model, weights
        self.w, self.t_l, self.t_s = dict(w), method.t_l, method.t_s
        self._theta = dict(theta)
        gamma = None if method.gamma == "auto" else method.gamma
        self.descent = Descent(
            list(self.w.values()),
            relative=method.relative,
            gamma=gamma,
            layer_share=method.layer_share,
        )
        self.descent.recorder = recorder
        self.count_active = self.descent.active
        self.behind: dict[str, Tensor] = {}
        start = method.dense_start
        usual = min(0.3 if has_norm(model) else 0.5, method.ramp_end / 2)
        self._start = usual if start is None else start
        self._attached, self._reached, self._finished = attached, False, False
        self._schedule = find_schedule(method.w_schedule)
        self._step = 0
        self._phase = ""
        self._enter("descent" if self._first_descent == 0 else "dense")

    @classmethod
    def over(
        cls,
        model: nn.Module,
        method: Settings,
        connections: Mapping[str, nn.Parameter],
        *,
        seed: int,
        weights: bool,
    ) -> Self:
        """Lay masks over the connections of a network, and begin."""
        w = draw_w(method, connections, seed)
        masks = attach_masks(model, w, method.t_l, method.t_s)
        recorder = None
        if method.record:
            recorder = Recorder(list(masks.values()), list(w.values()), method.t_l, method.t_s)
        return cls(model, method, connections, w, weights=weights, recorder=recorder)

    @property
    def phase(self) -> Hashable:
        """Return `dense`, `descent` or `frozen`."""
        return self._phase

    @property
    def sparsity(self) -> float:
        """Return the fraction of connections that are off now."""
        return 1.0 - self.count_active() / self.descent.total

    @property
    def theory(self) -> Theory | None:
        """Return what was measured of Theorem 1, if the method records it and w has moved.

        Reading it waits for the device; measuring does not.
        """
        return None if self.descent.recorder is None else self.descent.recorder.result()

    def step(self) -> None:
        """Do one step of the mask; call it after the optimiser's in a loop of your own."""
        step = self._step
        self.before(step)
        self.on_update()
        self.after(step)
        self.check(step)

    def before(self, step: int) -> None:
        """Set this step's size of w and its sparsity."""
        first = self._first_descent
        factor = self._schedule(max(0, step - first), self.steps - first)
        self.descent.aim(self.method.w_step * factor, keep=1.0 - self._scheduled(step))

    def on_update(self) -> None:
        """Move w, after the weights have moved."""
        if self.moving and self._attached:
            self._reached |= any(w.grad is not None for w in self.w.values())
            self.descent.update()

    def after(self, step: int) -> None:
        """Take the architectures that this step has passed."""
        self._step = step + 1
        if self._phase == "dense" and step + 1 >= self._first_descent:
            self._enter("descent")
            return
        if self._phase != "descent":
            return
        # a hair of tolerance: the schedule is a product of floats, the target a number typed in
        reached = self._scheduled(step) + 1e-9 if self._follows_schedule else self.sparsity
        for sparsity in [s for s in self.sparsities if s <= reached and s not in self.masks]:
            self._take(sparsity)
        if len(self.masks) == len(self.sparsities):
            self._freeze()

    def check(self, step: int) -> None:
        """Raise if w is not finite."""
        bad = self.descent.first_bad
        if bad is not None or not all(bool(w.isfinite().all()) for w in self.w.values()):
            at = step if bad is None else bad + self._first_descent
            raise SearchError(
                f"w or its gradient is not finite at step {at} of {self.steps}: try a smaller "
                "learning rate, a smaller w_step, a clipped gradient or a longer dense start"
            )

    def state(self) -> State:
        """Return how far it has come, and the architectures that it has passed.

        The mask parameters are in it only if they are not a part of the network.
        """
        state = {"phase": self._phase, "step": self._step}
        state |= {"masks": list(self.masks), "weights": list(self.weights)}
        for place, masks in enumerate(self.masks.values()):
            bits = {name: as_tensor(pack(mask)) for name, mask in masks.items()}
            state |= with_prefix(f"masks/{place}", bits)
        for place, weights in enumerate(self.weights.values()):
            state |= with_prefix(f"weights/{place}", weights)
        state |= with_prefix("w", {} if self._attached else self.w)
        return state | with_prefix("descent", self.descent.state())

    def load_state(self, state: State) -> None:
        """Go on from such a state."""
        passed = list(self.sparsities[: len(state["masks"])])
        if state["masks"] != passed or state["weights"] not in (passed, passed[:-1], []):
            raise ValueError("architectures that were not asked for")
        if (state["phase"] == "frozen") != (len(passed) == len(self.sparsities)):
            raise ValueError("a phase that does not fit the architectures")
        self._step = state["step"]
        self.masks, self.weights = {}, {}
        for place, sparsity in enumerate(passed):
            packed = part_of(state, f"masks/{place}")
            self.masks[sparsity] = {
                name: unpack(packed[name].numpy().tobytes(), tuple(w.shape), w.device)
                for name, w in self.w.items()
            }
        for place, sparsity in enumerate(state["weights"]):
            self.weights[sparsity] = part_of(state, f"weights/{place}")
            check_alike(self.weights[sparsity], self._state(self.masks[sparsity]))
        for name, w in part_of(state, "w").items():
            self.w[name].detach().copy_(w)
        self.descent.load_state(part_of(state, "descent"))
        self._enter(state["phase"])

    def architecture(self, sparsity: float | None = None) -> Architecture:
        """Return the architecture of one of the sparsities asked for; the last by default.

        Raises:
            SearchError: The search has not come so far, or went wrong.
            SettingError: The sparsity was not asked for.
        """
        self.check(self._step)
        sparsity = self.sparsities[-1] if sparsity is None else sparsity
        if sparsity not in self.sparsities:
            asked = ", ".join(f"{s:g}" for s in self.sparsities)
            raise SettingError(
                f"sparsity {sparsity} was not asked for: expected one of {asked}, or give it to the"
                " method before the search"
            )
        if sparsity not in self.masks:
            raise SearchError(self._short_of(sparsity))
        origin = {"method": self.method.name, "sparsity": sparsity, **self.origin, **self.notes()}
        return Architecture(self.masks[sparsity], origin)

    def notes(self) -> dict[str, Any]:
        """Return what the search has measured on its way, for the provenance."""
        return {} if self.theory is None else {"theory": asdict(self.theory)}

    def finish(self) -> None:
        """Fold the masks into the weights, so that the network is an ordinary one again.

        Once is enough: when they are folded, nothing happens any more.

        Raises:
            SearchError: A sparsity was not reached.
        """
        self.check(self._step)
        last = self.sparsities[-1]
        if last not in self.masks:
            raise SearchError(self._short_of(last))
        if self._finished:
            return
        self._finished = True
        self._fold()
        if self._keep_weights:
            self.weights[last] = masked_state(self._model, self.masks[last])

    @property
    def moving(self) -> bool:
        """Return whether w moves in the coming step."""
        return self._phase == "descent"

    @property
    def _follows_schedule(self) -> bool:
        return self.method.gamma == "auto"

    @property
    def _first_descent(self) -> int:
        return round(self._start * self.steps)

    def _scheduled(self, step: int) -> float:
        if not self._follows_schedule:
            return 0.0
        return self.sparsities[-1] * ramp(
            step, self.steps, start=self._start, end=self.method.ramp_end
        )

    def _enter(self, phase: str) -> None:
        if phase not in ("dense", "descent", "frozen"):
            raise ValueError(f"there is no phase {phase!r}")
        self._phase = phase
        for w in self.w.values():
            w.requires_grad_(phase == "descent")

    def _take(self, sparsity: float) -> None:
        self.check(self._step - 1)
        if not self.masks:
            self._warn_if_unreached()
        kept = keep_count(self.descent.total, sparsity)
        self.masks[sparsity] = keep_largest(self.w, kept)
        empty = [name for name, mask in self.masks[sparsity].items() if not mask.any()]
        if empty:
            warnings.warn(
                f"at sparsity {sparsity:g}, after {self._step} of {self.steps} steps, no connection"
                f" is left in {', '.join(empty)}, so nothing passes through; try a lower sparsity, a"
                " smaller w_step, or exclude it",
                EmptyLayerWarning,
                stacklevel=2,
            )
        if self._keep_weights and sparsity != self.sparsities[-1]:
            self.weights[sparsity] = self._state(self.masks[sparsity])

    def _warn_if_unreached(self) -> None:
        if self._attached and not self._reached:
            warnings.warn(
                f"after {self._step} of {self.steps} steps no gradient has reached the mask, so that"
                " its first random numbers alone choose; call search.step() after backward() through"
                " the network that the search is attached to, not through a copy",
                NetworkWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def _freeze(self) -> None:
        """Set w where σ(t_l·w) is 0 or 1 to the last bit: the network is the architecture now."""
        self._enter("frozen")
        far = 1_000.0 / self.method.t_l
        for name, mask in self.masks[self.sparsities[-1]].items():
            self.w[name].copy_(torch.where(mask, far, -far))
            self.w[name].grad = None

    @torch.no_grad()
    def _fold(self) -> None:
        if self._attached:
            fold(self._model, self.w)
            return
        for name, mask in self.masks[self.sparsities[-1]].items():
            self._theta[name].mul_(mask)

    def _state(self, masks: Masks) -> dict[str, Tensor]:
        """Return the state of a network in the middle of a search as that of an ordinary one."""
        plain = {
            name: value.detach().cpu().clone()
            for name, value in self._model.state_dict().items()
            if ".parametrizations." not in f".{name}"
        }
        plain |= {name: value.cpu().clone() for name, value in self.behind.items()}
        for name, mask in masks.items():
            plain[name] = (self._theta[name].detach() * mask).cpu()
        return plain

    def _short_of(self, sparsity: float) -> str:
        hint = "take more steps"
        if not self._follows_schedule:
            hint = 'raise gamma or w_step, take more steps, or use gamma="auto"'
        return (
            f"the search stands at sparsity {self.sparsity:.4g} after {self._step} of {self.steps} "
            f"steps, short of {sparsity:g}: {hint}"
        )


def draw_w(
    method: Settings, connections: Mapping[str, nn.Parameter], seed: int
) -> dict[str, Tensor]:
    """Draw w₀ for connections that are enough for what is asked."""
    for sparsity in method.sparsities:
        keep_count(sum(theta.numel() for theta in connections.values()), sparsity)
    w = {}
    for name, theta in connections.items():
        generator = torch.Generator(theta.device).manual_seed(derive_seed(seed, "w", name))
        draw = torch.empty_like(theta, dtype=torch.float32, requires_grad=False)
        w[name] = draw.normal_(generator=generator).abs_().mul_(method.w_scale).add_(method.w_start)
    return w
