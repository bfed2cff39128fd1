"""Architecture pruning: the mask is learnt by gradient descent together with the weights.

Paper, appendix "Architecture-pruning algorithm" and "Enforcing sparsity". With v = σ(t_l·w) and the
warm gradient g = ∂L/∂v ∘ t_s·σ′(t_s·w), each step takes

    w ← w − α·(g + 2γ·(1 + w))          θ ← θ − β·(∂L/∂θ + 2γ·θ)

until the sparsity asked for is reached; then w is frozen. The architecture is m = 1[w > 0].
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.maths.schedules import Schedule, find_schedule
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.methods.searching import Search, draw_w
from aprune.methods.setting import is_number
from aprune.training import choose_engine, fit, no_more_than_captured
from aprune.training.fused import FusedUpdate
from aprune.training.update import Update

_BY_FIND = {"set_by_find": True}  # not for the command line


@dataclass(frozen=True)
class AP(Method):
    """Architecture pruning and its settings.

    Attributes:
        sparsity: Fraction, or fractions, of connections to remove. `find` sets it.
        steps: Length of the search. `find` sets it to the steps of the recipe.
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        w_scale: Standard deviation ε_w of w₀ ~ w_start + |N(0, ε_w²)|. Wide, so that few connections
            stand near the threshold at any time: deep networks without norms die of many flips at once.
        w_start: The smallest w₀ there can be. With 1 and a narrow `w_scale` all start alike: what is
            learnt decides which connections of a layer stay, and not how w₀ was drawn.
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
            networks that normalise and 0.5 for others, which die without it, but at most half of
            `ramp_end`.
        ramp_end: Fraction of the steps at which the last sparsity is reached.
        record: Whether to measure on the way what Theorem 1 speaks of (see `Search.theory`). The search
            is the same, and a step of w costs more.

    Example:
        >>> AP(sparsity=0.9, steps=100).t_s
        10.0
    """

    name: ClassVar[str] = "ap"
    summary: ClassVar[str] = "mask and weights together, through two temperatures"
    source: ClassVar[str] = "Colombo and Gao"
    cost: ClassVar[str] = "a training"
    nested: ClassVar[bool] = False
    sparsity: float | Sequence[float] | None = field(default=None, metadata=_BY_FIND)
    steps: int | None = field(default=None, metadata=_BY_FIND)
    t_l: float = 100.0
    t_s: float = 10.0
    w_scale: float = 2.0
    w_start: float = field(default=0.0, metadata={"unless_default": True})
    theta_start: Literal["he", "parent"] | float = "he"
    w_step: float = 0.01
    w_schedule: str | Schedule = "warm_up"
    relative: bool = True
    gamma: float | Literal["auto"] = "auto"
    dense_start: float | None = None
    ramp_end: float = 0.9
    record: bool = field(default=False, metadata={"unless_default": True})

    def __post_init__(self) -> None:
        for name in ("t_l", "t_s", "w_scale", "w_step"):
            if not is_number(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)!r}: expected a number above 0")
        if not is_number(self.w_start, least=0.0):
            raise SettingError(f"w_start is {self.w_start!r}: expected a number from 0 on")
        if self.gamma != "auto" and not is_number(self.gamma, least=0.0):
            raise SettingError(f"gamma is {self.gamma!r}: expected auto or a number from 0 on")
        if self.theta_start not in ("he", "parent") and not is_number(self.theta_start):
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

    @property
    def rewinds(self) -> bool:
        """Return whether θ₀ can be drawn again."""
        return self.theta_start == "he"

    def search(self, problem: Problem) -> Outcome:
        """Learn the mask and the weights together; one search passes through all sparsities."""
        model, recipe, seed = problem.model, problem.recipe, problem.seed
        if self.theta_start == "he":
            initialise(model, scheme="he", seed=seed)
        elif self.theta_start != "parent":
            initialise(model, scheme="normal", seed=seed, epsilon=self.theta_start)
        if self.gamma != "auto":
            recipe = recipe.but(weight_decay=2 * self.gamma)
        method = replace(self, sparsity=problem.sparsities, steps=recipe.steps)
        chosen, keeps = problem.connections, problem.weights
        level = choose_engine(problem.engine, model, recipe.steps)
        if self.record:
            level = no_more_than_captured(level)
        with contextlib.ExitStack() as stack:
            update: Update | None = None
            if level in ("fused", "compiled"):
                w = draw_w(method, chosen, seed)
                search = Search(model, method, chosen, w, weights=keeps, attached=False)
                fused = FusedUpdate(model, recipe, mover=search, shape=problem.task.shape)
                search.count_active, search.behind = fused.active, fused.weights()
                update = stack.enter_context(fused.in_place())
            else:
                search = Search.over(model, method, chosen, seed=seed, weights=keeps)
            curve = fit(
                model,
                problem.task,
                recipe,
                seed=seed,
                hooks=[search],
                update=update,
                engine=level,
                title="ap search",
                progress=problem.progress,
            )
        search.finish()
        return Outcome(
            search.masks,
            search.weights,
            [curve],
            recipe=recipe,
            trained=True,
            notes=search.notes(),
        )
