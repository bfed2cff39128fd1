"""Architecture pruning: the mask is learnt by gradient descent together with the weights.

Paper, appendix "Architecture-pruning algorithm" and "Enforcing sparsity". With v = σ(t_l·w) and the
warm gradient g = ∂L/∂v ∘ t_s·σ′(t_s·w), each step takes

    w ← w − α·(g + 2γ·(1 + w))          θ ← θ − β·(∂L/∂θ + 2γ·θ)

until the sparsity asked for is reached; then w is frozen. The architecture is m = 1[w > 0].
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from aprune.architecture import Architecture
from aprune.connections import (
    TwoTemperatureMask,
    attach_masks,
    find_connections,
    fold,
    has_norm,
    list_patterns,
)
from aprune.errors import SearchError, SettingError, TrainingError
from aprune.initialise import initialise
from aprune.maths.schedules import Schedule, find_schedule, ramp
from aprune.maths.seed import derive_seed
from aprune.maths.select import check_sparsity, keep_count, keep_largest
from aprune.methods.descent import Descent
from aprune.methods.protocol import Masks, Outcome, masked_state
from aprune.tasks import Task
from aprune.training import Hook, Recipe, fit


@dataclass(frozen=True)
class AP:
    """Architecture pruning and its settings.

    Attributes:
        sparsity: Fraction, or fractions, of connections to remove. `find` sets it.
        steps: Length of the search. `find` sets it to the steps of the recipe.
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        w_scale: Standard deviation ε_w of w₀ ~ |N(0, ε_w²)|. Wide, so that few connections stand
            near the threshold at any time: deep networks without norms die of many flips at once.
        theta_start: `he`; or `parent`, the weights that the network comes with; or a number ε_θ for
            θ₀ ~ N(0, ε_θ²).
        w_step: Step size α of w; how far a connection with a typical gradient moves in a step if
            `relative`, otherwise the factor of the gradient.
        w_schedule: How α changes over the steps after the dense start: a schedule's name or a
            function of (step, steps). It rises slowly by default: the first steps of w reach the
            layers with the largest gradients, which must not lose many connections at once.
        relative: Whether α is divided by the running root mean square of the gradient of all
            connections, which makes one `w_step` fit parents of every size.
        gamma: The penalty γ; `auto` takes, at each step, the smallest γ that brings the sparsity to
            its schedule.
        dense_start: Fraction of the steps before the first connection goes; None takes 0.3 for
            networks that normalise and 0.5 for others, which die without it.
        ramp_end: Fraction of the steps at which the last sparsity is reached.

    Example:
        >>> AP(sparsity=0.9, steps=100).t_s
        10.0
    """

    name: ClassVar[str] = "ap"
    sparsity: float | Sequence[float] | None = None
    steps: int | None = None
    t_l: float = 100.0
    t_s: float = 10.0
    w_scale: float = 2.0
    theta_start: Literal["he", "parent"] | float = "he"
    w_step: float = 0.02
    w_schedule: str | Schedule = "warm_up"
    relative: bool = True
    gamma: float | Literal["auto"] = "auto"
    dense_start: float | None = None
    ramp_end: float = 0.9

    def __post_init__(self) -> None:
        for name in ("t_l", "t_s", "w_scale", "w_step"):
            if not _is_number(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)!r}: expected a number above 0")
        if self.gamma != "auto" and not _is_number(self.gamma, least=0.0):
            raise SettingError(f"gamma is {self.gamma!r}: expected auto or a number from 0 on")
        if self.theta_start not in ("he", "parent") and not _is_number(self.theta_start):
            raise SettingError(
                f"theta_start is {self.theta_start!r}: expected he, parent or a number above 0"
            )
        start = 0.0 if self.dense_start is None else self.dense_start
        if not 0 <= start < self.ramp_end <= 1:
            raise SettingError(
                f"dense_start is {start} and ramp_end {self.ramp_end}: expected 0 ≤ start < end ≤ 1"
            )
        find_schedule(self.w_schedule)

    @classmethod
    def paper(cls, gamma: float = 1e-4, w_step: float = 0.1) -> Self:
        """Return the letter of the paper.

        θ₀ and w₀ from narrow normals, a fixed γ, absolute step sizes c/√i, no dense start. Where the
        paper gives no number (γ, c, ε) it takes arguments or a small value. Pair it with a recipe of
        plain SGD: `Recipe(..., schedule="inverse_sqrt", momentum=0, clip=None)`.

        Example:
            >>> AP.paper().relative
            False
        """
        return cls(
            w_scale=0.01,
            theta_start=0.01,
            w_step=w_step,
            w_schedule="inverse_sqrt",
            relative=False,
            gamma=gamma,
            dense_start=0.0,
            ramp_end=1.0,
        )

    @property
    def needs_weights(self) -> bool:
        """Return whether the parent's own weights are used."""
        return self.theta_start == "parent"

    def search(
        self,
        model: nn.Module,
        connections: Sequence[str],
        task: Task,
        sparsities: Sequence[float],
        *,
        recipe: Recipe,
        seed: int,
        weights: bool = False,
        progress: bool | None = None,
    ) -> Outcome:
        """Learn the mask and the weights together; one search passes through all sparsities."""
        if self.theta_start == "he":
            initialise(model, scheme="he", seed=seed)
        elif self.theta_start != "parent":
            initialise(model, scheme="normal", seed=seed, epsilon=self.theta_start)
        if self.gamma != "auto":
            recipe = recipe.but(weight_decay=2 * self.gamma)
        method = replace(self, sparsity=tuple(sparsities), steps=recipe.steps)
        parameters = dict(model.named_parameters())
        chosen = {name: parameters[name] for name in connections}
        search = _attach(model, method, chosen, seed=seed, weights=weights)
        try:
            curve = fit(
                model, task, recipe, seed=seed, hooks=[search], title="ap search", progress=progress
            )
        except TrainingError as error:
            raise SearchError(f"the search died: {error}") from error
        search.finish()
        return Outcome(search.masks, search.weights, [curve], recipe.steps, trained=True)


def attach(
    model: nn.Module,
    method: AP,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    seed: int = 0,
    weights: bool = False,
) -> "Search":
    """Attach a search to `model` in place, for a training loop of your own.

    Any optimiser may train the weights; `search.step()` trains the mask. For the paper's penalty on
    the weights, give the optimiser a `weight_decay` of 2γ.

    Args:
        model: Any network; its connections are parametrised in place.
        method: Settings, with `sparsity` and `steps`.
        include: Patterns of parameters to search over (see `find_connections`).
        exclude: Patterns of parameters to leave alone.
        seed: Of the initial w.
        weights: Whether to keep the weights that go with each architecture.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> search = attach(model, AP(sparsity=0.75, steps=50))
        >>> for _ in range(50):
        ...     x = torch.randn(32, 8)
        ...     loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        ...     optimiser.zero_grad()
        ...     loss.backward()
        ...     optimiser.step()
        ...     search.step()
        >>> search.architecture().kept, search.architecture().total
        (40, 160)
    """
    if method.sparsity is None or method.steps is None:
        raise SettingError(
            "attach needs to know where to go: give the method a sparsity and steps, "
            "as in AP(sparsity=0.9, steps=1000)"
        )
    if method.steps < 2:
        raise SettingError(f"steps is {method.steps}: expected at least 2")
    connections = find_connections(model, include=include, exclude=exclude)
    search = _attach(model, method, connections, seed=seed, weights=weights)
    search.origin = {"include": list_patterns(include), "exclude": list_patterns(exclude)}
    return search


def _attach(
    model: nn.Module,
    method: AP,
    connections: Mapping[str, nn.Parameter],
    *,
    seed: int,
    weights: bool,
) -> "Search":
    for sparsity in _sparsities(method):
        keep_count(sum(theta.numel() for theta in connections.values()), sparsity)
    w = {}
    for name, theta in connections.items():
        generator = torch.Generator(theta.device).manual_seed(derive_seed(seed, "w", name))
        draw = torch.empty_like(theta, dtype=torch.float32, requires_grad=False)
        w[name] = draw.normal_(generator=generator).abs_().mul_(method.w_scale)
    return Search(model, method, attach_masks(model, w, method.t_l, method.t_s), weights=weights)


def _sparsities(method: AP) -> tuple[float, ...]:
    asked = method.sparsity if isinstance(method.sparsity, Sequence) else [method.sparsity]
    return tuple(sorted({check_sparsity(s) for s in asked if s is not None}))


def _is_number(value: object, least: float = math.ulp(0.0)) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= least


class Search(Hook):
    """A search attached to a network.

    It goes through three phases: dense (w stands still), descent (w moves, connections go), frozen
    (the last architecture is reached; the weights train on under exactly that mask).
    """

    def __init__(
        self,
        model: nn.Module,
        method: AP,
        parametrisations: Mapping[str, TwoTemperatureMask],
        *,
        weights: bool = False,
    ) -> None:
        assert method.steps is not None
        self.sparsities = _sparsities(method)
        self.method, self.steps = method, method.steps
        self.masks: dict[float, Masks] = {}
        self.weights: dict[float, dict[str, Tensor]] = {}
        self.origin: dict[str, Any] = {}
        self._model, self._keep_weights = model, weights
        self._w = {name: mask.w for name, mask in parametrisations.items()}
        gamma = None if method.gamma == "auto" else method.gamma
        self._descent = Descent(list(self._w.values()), relative=method.relative, gamma=gamma)
        start = method.dense_start
        usual = min(0.3 if has_norm(model) else 0.5, method.ramp_end / 2)
        self._start = usual if start is None else start
        self._schedule = find_schedule(method.w_schedule)
        self._step = 0
        self._phase = ""
        self._enter("descent" if self._first_descent == 0 else "dense")

    @property
    def phase(self) -> Hashable:
        """Return `dense`, `descent` or `frozen`."""
        return self._phase

    @property
    def sparsity(self) -> float:
        """Return the fraction of connections that are off now."""
        return 1.0 - self._descent.active() / self._descent.total

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
        self._descent.step_size.fill_(self.method.w_step * factor)
        self._descent.keep.fill_(1.0 - self._scheduled(step))

    def on_update(self) -> None:
        """Move w, after the weights have moved."""
        if self._phase == "descent":
            self._descent.update()

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
        bad = int(self._descent.first_bad)
        finite = bad < 0 and all(bool(w.isfinite().all()) for w in self._w.values())
        if not finite:
            at = bad + self._first_descent if bad >= 0 else step
            raise SearchError(
                f"w or its gradient is not finite at step {at} of {self.steps}: try a smaller "
                "learning rate, a smaller w_step, a clipped gradient or a longer dense start"
            )

    def architecture(self, sparsity: float | None = None) -> Architecture:
        """Return the architecture of one of the sparsities asked for; the last by default.

        Raises:
            SearchError: The search has not come so far, or went wrong.
        """
        self.check(self._step)
        sparsity = self.sparsities[-1] if sparsity is None else sparsity
        if sparsity not in self.masks:
            raise SearchError(self._short_of(sparsity))
        origin = {"method": self.method.name, "sparsity": sparsity, **self.origin}
        return Architecture(self.masks[sparsity], origin)

    def finish(self) -> None:
        """Fold the masks into the weights, so that the network is an ordinary one again.

        Raises:
            SearchError: A sparsity was not reached.
        """
        self.check(self._step)
        last = self.sparsities[-1]
        if last not in self.masks:
            raise SearchError(self._short_of(last))
        fold(self._model, self._w)
        if self._keep_weights:
            self.weights[last] = masked_state(self._model, self.masks[last])

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
        self._phase = phase
        for w in self._w.values():
            w.requires_grad_(phase == "descent")

    def _take(self, sparsity: float) -> None:
        self.check(self._step - 1)
        kept = keep_count(self._descent.total, sparsity)
        self.masks[sparsity] = keep_largest(self._w, kept)
        if self._keep_weights and sparsity != self.sparsities[-1]:
            self.weights[sparsity] = _state(self._model, self.masks[sparsity])

    @torch.no_grad()
    def _freeze(self) -> None:
        """Set w where σ(t_l·w) is 0 or 1 to the last bit: the network is the architecture now."""
        self._enter("frozen")
        far = 1_000.0 / self.method.t_l
        for name, mask in self.masks[self.sparsities[-1]].items():
            self._w[name].copy_(torch.where(mask, far, -far))
            self._w[name].grad = None

    def _short_of(self, sparsity: float) -> str:
        hint = "take more steps"
        if not self._follows_schedule:
            hint = 'raise gamma or w_step, take more steps, or use gamma="auto"'
        return (
            f"the search stands at sparsity {self.sparsity:.4g} after {self._step} of {self.steps} "
            f"steps, short of {sparsity:g}: {hint}"
        )


def _state(model: nn.Module, masks: Masks) -> dict[str, Tensor]:
    """Return the state of a network in the middle of a search as that of an ordinary one."""
    plain = {
        name: value.detach().cpu().clone()
        for name, value in model.state_dict().items()
        if ".parametrizations." not in f".{name}"
    }
    for name, mask in masks.items():
        prefix, _, leaf = name.rpartition(".")
        theta = model.get_submodule(prefix).parametrizations[leaf].original  # type: ignore[index, union-attr]
        plain[name] = (theta.detach() * mask).cpu()
    return plain
