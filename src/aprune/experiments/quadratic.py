"""A convex problem with a known optimum, for Theorem 1 to be tried on.

Paper, section "Convergence", Assumption 1 and Theorem 1. With ℓ(z; v) = ½(xᵀv − y)² the loss is convex
in v ∈ [0, 1]^D, its optimum v* is chosen, and G is the largest ‖∂ℓ/∂v‖ on all of [0, 1]^D, worked out
exactly. Every x comes with two labels, y = xᵀv* ± ε, so that v* is the optimum and gradients at it are
noise, not zero. The steps of w are those of the theorem, one sample each,

    w ← w − c/√i · (xᵀv − y) x ∘ t_s·σ′(t_s·w),     v = σ(t_l·w).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from aprune.errors import SettingError
from aprune.maths.bound import Theorem
from aprune.maths.error import step_error
from aprune.maths.relaxation import warm_slope
from aprune.maths.seed import derive_seed
from aprune.progress import bar
from aprune.training.device import one_thread

if TYPE_CHECKING:
    import pandas as pd

Optimum = Literal["interior", "binary"]
_POINTS = 33  # recorded numbers of steps, evenly spaced on a logarithmic axis


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The problem: F(v) − F(v*) = ½·mean (xᵀ(v − v*))².

    Attributes:
        inputs: The x, one a row [N, D].
        optimum: v* [D].
        noise: ε, by which labels differ from xᵀv*.
    """

    inputs: Tensor
    optimum: Tensor
    noise: float

    @property
    def largest_gradient(self) -> float:
        """Return G: the largest |xᵀ(v − v*)| + ε that any v ∈ [0, 1]^D has, times ‖x‖."""
        up, down = self.inputs.clamp(min=0), self.inputs.clamp(max=0)
        above = up @ (1 - self.optimum) - down @ self.optimum
        below = up @ self.optimum - down @ (1 - self.optimum)
        residual = torch.maximum(above, below) + self.noise
        return float((residual * self.inputs.norm(dim=1)).max())

    def gap(self, v: Tensor) -> Tensor:
        """Return F(v) − F(v*) of one or many v [..., D].

        Example:
            >>> problem = Quadratic(torch.eye(2), torch.tensor([1.0, 0.0]), noise=0.0)
            >>> problem.gap(torch.tensor([0.0, 0.0])).item()  # ½ · (1² + 0²)/2
            0.25
        """
        return ((v - self.optimum) @ self.inputs.T).square().mean(-1) / 2


def make_quadratic(
    optimum: Optimum, *, dimension: int = 400, samples: int = 256, noise: float = 0.1
) -> Quadratic:
    """Draw a problem: x uniform in [0, 1]^D/√D, so that ‖x‖ depends little on D.

    Args:
        optimum: `interior`, v* uniform in [0.1, 0.5]^D; or `binary`, one entry in ten is 1.
        dimension: D.
        samples: How many x there are.
        noise: ε.

    Example:
        >>> make_quadratic("binary", dimension=10).optimum.unique().tolist()
        [0.0, 1.0]
    """
    generator = torch.Generator().manual_seed(derive_seed(0, "quadratic", optimum))
    inputs = torch.rand(samples, dimension, generator=generator, dtype=torch.float64)
    drawn = torch.rand(dimension, generator=generator, dtype=torch.float64)
    chosen = 0.1 + 0.4 * drawn if optimum == "interior" else (drawn < 0.1).double()
    return Quadratic(inputs / math.sqrt(dimension), chosen, noise)


@dataclass(frozen=True)
class Scheme:
    """How w is moved, and from where.

    Attributes:
        t_l: Inverse temperature of the forward pass.
        t_s: Inverse temperature of the backward pass.
        c: Of the step sizes c/√i.
        spread: w starts at |N(0, 1)|·spread/t_l, so that equal spreads are equal v.
    """

    t_l: float
    t_s: float
    c: float
    spread: float


def descend(
    problem: Quadratic, schemes: Sequence[Scheme], *, seeds: Sequence[int], steps: int
) -> "pd.DataFrame":
    """Move w by all schemes and from all seeds at once, and measure what Theorem 1 speaks of.

    A seed decides the start and the samples, which are the same for every scheme. On one machine the
    same call gives the same numbers bit for bit.

    Returns:
        One row for each scheme, seed and recorded number of steps T: the scheme; seed; steps; `average`
        and `last`, the gaps of the mean of v₁ … v_T and of v_T; `r2`, `m` and `g_seen`, the largest
        ‖v − v*‖², |w| and gradient so far; `bias`, the mean of rᵀ(v − v*) so far; `ratio_mean` and
        `ratio_max`, of ‖r‖² over the square of `g_seen`; `g`, G of the assumption; `constant`, C; and
        the bounds for the R², M and bias of this run.

    Example:
        >>> problem = make_quadratic("interior", dimension=10)
        >>> frame = descend(problem, [Scheme(4, 4, 0.1, 0.5)], seeds=[0, 1], steps=10)
        >>> bool((frame["average"] < frame["unconditional"]).all())
        True
    """
    if steps < 1 or not len(seeds):
        raise SettingError(f"got {len(seeds)} seeds and {steps} steps: give at least 1 of each")
    moments = choose_moments(steps)
    with one_thread(), bar("theorem", steps) as advance:
        runs = _Runs(problem, schemes, seeds, steps)
        recorded = []
        for step in range(1, steps + 1):
            runs.move(step)
            if step in moments:
                recorded.append(runs.measure(step))
            advance()
    return _tabulate(torch.stack(recorded, dim=2), problem, schemes, seeds, moments)


def choose_moments(steps: int) -> list[int]:
    """Return when to record: 1, the last one, and others evenly spaced in log(step).

    Example:
        >>> choose_moments(4)
        [1, 2, 3, 4]
    """
    ratios = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    return sorted({steps, *(steps**ratios).round().long().tolist()})


class _Runs:
    """All runs side by side; tensors are [schemes, seeds, D] or [schemes, seeds]."""

    def __init__(
        self, problem: Quadratic, schemes: Sequence[Scheme], seeds: Sequence[int], steps: int
    ) -> None:
        self.problem = problem
        self.t_l, self.t_s, self.c, spread = (
            torch.tensor([getattr(scheme, name) for scheme in schemes]).double()[:, None, None]
            for name in ("t_l", "t_s", "c", "spread")
        )
        start, drawn = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(derive_seed(seed, "theorem"))
            start.append(torch.randn(problem.optimum.shape, generator=generator).double().abs())
            drawn.append(torch.randint(2 * len(problem.inputs), (steps,), generator=generator))
        self.samples = torch.stack(drawn, dim=1)
        self.w = torch.stack(start) * spread / self.t_l
        self.v = self.last = torch.sigmoid(self.t_l * self.w)
        self.total = torch.zeros_like(self.v)
        self.m = self.w.amax(-1)
        self.r2, self.gradient, self.error, self.error_sum, self.bias_sum = torch.zeros(
            5, *self.m.shape
        ).double()

    def move(self, step: int) -> None:
        """Take step number `step`, counted from 1; `last` is where it begins."""
        x = self.problem.inputs[self.samples[step - 1] // 2]
        noise = self.problem.noise * (1 - 2 * (self.samples[step - 1] % 2))
        away = self.v - self.problem.optimum
        slope = ((away * x).sum(-1) - noise)[..., None] * x
        gradient, alpha = slope * warm_slope(self.w, self.t_s), self.c / math.sqrt(step)
        error = step_error(self.w, gradient, slope, alpha=alpha, t_l=self.t_l)
        size = error.square().sum(-1)
        self.w = self.w - alpha * gradient
        self.last, self.v = self.v, torch.sigmoid(self.t_l * self.w)
        self.total += self.last
        self.r2 = torch.maximum(self.r2, away.square().sum(-1))
        self.m = torch.maximum(self.m, self.w.abs().amax(-1))
        self.gradient = torch.maximum(self.gradient, slope.norm(dim=-1))
        self.error = torch.maximum(self.error, size)
        self.error_sum += size
        self.bias_sum += (error * away).sum(-1)

    def measure(self, step: int) -> Tensor:
        """Return what was seen until now [schemes, seeds, values]."""
        gaps = [self.problem.gap(v) for v in (self.total / step, self.last)]
        scale = self.gradient.square()
        ratios = [self.error_sum / step / scale, self.error / scale]
        bias = self.bias_sum / step
        return torch.stack([*gaps, self.r2, self.m, self.gradient, bias, *ratios], dim=-1)


_MEASURED = ("average", "last", "r2", "m", "g_seen", "bias", "ratio_mean", "ratio_max")


def _tabulate(
    recorded: Tensor,
    problem: Quadratic,
    schemes: Sequence[Scheme],
    seeds: Sequence[int],
    moments: Sequence[int],
) -> "pd.DataFrame":
    """Return what was recorded [schemes, seeds, moments, values] as a long table, with the bounds."""
    import pandas as pd

    g, rows = problem.largest_gradient, []
    for scheme, of_scheme in zip(schemes, recorded.tolist(), strict=True):
        for seed, of_seed in zip(seeds, of_scheme, strict=True):
            for steps, values in zip(moments, of_seed, strict=True):
                row = dict(zip(_MEASURED, values, strict=True))
                theorem = Theorem(scheme.t_l, scheme.t_s, scheme.c, g=g, m=row["m"], r2=row["r2"])
                rows.append(
                    {
                        **asdict(scheme),
                        "seed": seed,
                        "steps": steps,
                        **row,
                        "g": g,
                        "constant": theorem.constant,
                        **theorem.bounds(steps, row["bias"]),
                    }
                )
    return pd.DataFrame(rows)
