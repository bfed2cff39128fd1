"""Architecture pruning: the mask is learnt by gradient descent together with the weights.

Paper, appendix "Architecture-pruning algorithm" and "Enforcing sparsity". With v = σ(t_l·w) and the
warm gradient g = ∂L/∂v ∘ t_s·σ′(t_s·w), each step takes

    w ← w − α·(g + 2γ·(1 + w))          θ ← θ − β·(∂L/∂θ + 2γ·θ)

until the sparsity asked for is reached; then w is frozen. The architecture is m = 1[w > 0].
"""

import contextlib
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from aprune.descent import Search, Settings, draw_w
from aprune.initialise import initialise
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.training import choose_engine, fit, no_more_than_captured
from aprune.training.fused import FusedUpdate
from aprune.training.update import Update


@dataclass(frozen=True)
class AP(Settings, Method):
    """Architecture pruning.

    What its settings mean, `t_l`, `w_scale` and the others, says `aprune.descent.Settings`.

    Example:
        >>> AP(sparsity=0.9, steps=100).t_s
        10.0
    """

    name: ClassVar[str] = "ap"
    summary: ClassVar[str] = "mask and weights together, through two temperatures"
    source: ClassVar[str] = "Colombo and Gao"
    cost: ClassVar[str] = "a training"
    nested: ClassVar[bool] = False

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
