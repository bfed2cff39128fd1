"""`solve`: minimise a differentiable function over subsets."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from aprune.errors import SettingError
from aprune.progress import bar
from aprune.solver.exchange import exchange
from aprune.solver.objective import Objective
from aprune.solver.scheme import Count, Scheme, descend

_WIDE = 64  # places on either side that are tried in an exchange


@dataclass(frozen=True, eq=False)
class Solution:
    """What `solve` found for one problem.

    Attributes:
        v: The best binary point that was seen, as booleans [D].
        value: f there, plus the price of its ones.
        theta: The θ that goes with it, if the problem has one.
        trajectory: Value of the binary point before the first step of its descent and after each
            [steps + 1], or at the `moments` asked for; the exchanges come after it.
        ones: How many ones there were, likewise.
        stopped: `settled` if no exchange that was tried makes it better; `rounds` if there might be one,
            but all rounds were used up; `steps` if there were no exchanges.
        evaluations: How often f was computed, for this problem and those solved beside it.
    """

    v: Tensor
    value: float
    theta: Tensor | None
    trajectory: Tensor
    ones: Tensor
    stopped: Literal["settled", "rounds", "steps"]
    evaluations: int


@overload
def solve(
    f: Callable[..., Tensor],
    size: int,
    *,
    data: None = ...,
    theta: Tensor | None = ...,
    fit: Callable[..., Tensor] | None = ...,
    sample: Callable[[int], Sequence[Tensor]] | None = ...,
    exactly: int | None = ...,
    at_most: int | None = ...,
    penalty: float = ...,
    scheme: Scheme | None = ...,
    restarts: int = ...,
    rounds: int = ...,
    moments: Collection[int] | None = ...,
    seed: int | Sequence[int] = ...,
    dtype: torch.dtype = ...,
    progress: bool | None = ...,
) -> Solution: ...


@overload
def solve(
    f: Callable[..., Tensor],
    size: int,
    *,
    data: Sequence[Tensor],
    theta: Tensor | None = ...,
    fit: Callable[..., Tensor] | None = ...,
    sample: Callable[[int], Sequence[Tensor]] | None = ...,
    exactly: int | None = ...,
    at_most: int | None = ...,
    penalty: float = ...,
    scheme: Scheme | None = ...,
    restarts: int = ...,
    rounds: int = ...,
    moments: Collection[int] | None = ...,
    seed: int | Sequence[int] = ...,
    dtype: torch.dtype = ...,
    progress: bool | None = ...,
) -> list[Solution]: ...


def solve(
    f: Callable[..., Tensor],
    size: int,
    *,
    data: Sequence[Tensor] | None = None,
    theta: Tensor | None = None,
    fit: Callable[..., Tensor] | None = None,
    sample: Callable[[int], Sequence[Tensor]] | None = None,
    exactly: int | None = None,
    at_most: int | None = None,
    penalty: float = 0.0,
    scheme: Scheme | None = None,
    restarts: int = 16,
    rounds: int = 50,
    moments: Collection[int] | None = None,
    seed: int | Sequence[int] = 0,
    dtype: torch.dtype = torch.float64,
    progress: bool | None = None,
) -> Solution | list[Solution]:
    """Minimise f over v ∈ {0, 1}^D, by gradient descent through two temperatures and by exchanges.

    The descent computes with v = σ(t_l·w), which is almost binary, and moves w along the gradient at
    t_s. Where so many ones are asked for, w is cut where they are the largest, with more of them at
    first. Where no number is asked for, one descent starts with everything, as the paper's does, and
    the others with a random half. The binary point of every step is looked at. The best one of
    every restart, and where half of them started, is then improved by exchanging single places, as
    long as that helps. Nothing proves that the result is the best there is.

    Args:
        f: From a tensor v [D] with entries in [0, 1] to one number; f(v, θ) if there is a θ; and with
            the tensors of one problem at the end, f(v, …, *data). It is computed for many points at
            once by `torch.vmap`.
        size: D.
        data: Tensors with a first dimension for several problems, which are solved together.
        theta: Where θ starts, if it is to be moved along with w. It is the same for all; or the first
            two dimensions are problems and restarts.
        fit: A function (v, *data) that gives the best θ for a v. Binary points are valued with it; and
            so is every v of the descent, unless θ is moved. The gradient is taken as if θ stood still,
            which is exact where it is the best.
        sample: A function from the number of a step to the tensors that it uses in place of `data`, for
            stochastic gradients. Binary points are valued with `data`.
        exactly: The number of ones.
        at_most: Their largest number.
        penalty: The price of a one, added to f.
        scheme: Settings of the descent.
        restarts: Descents from different starts.
        rounds: Exchanges at most; 0 leaves them out. So does a θ that is moved but not fitted: it
            belongs to one point, and says little of another.
        moments: Numbers of steps, from 0 to all, after which binary points are looked at; None is after
            every one. Fewer are quicker where `sample` gives a small part of large `data`.
        seed: Of the starts. It is one for all problems, which then start alike, or one for each.
        dtype: To compute with.
        progress: Whether to show a bar; None shows it on a terminal.

    Returns:
        A solution; with `data` a list with one for each problem.

    Raises:
        SettingError: The settings contradict each other, or f cannot be computed so.

    Example:
        >>> worth = torch.tensor([5.0, 4.0, 3.0, 2.0]).double()
        >>> weight = torch.tensor([4.0, 3.0, 2.0, 1.0]).double()
        >>> too_heavy = lambda v: (v @ weight - 6.0).clamp(min=0.0).square()
        >>> solve(lambda v: 9 * too_heavy(v) - v @ worth, 4).v.tolist()
        [False, True, True, True]
    """
    scheme = scheme or Scheme()
    count = _count(size, exactly, at_most)
    if restarts < 1 or rounds < 0:
        raise SettingError(
            f"restarts is {restarts} and rounds {rounds}: expected at least 1 and at least 0"
        )
    if not 0 <= penalty < float("inf"):
        raise SettingError(f"penalty is {penalty!r}: expected a number from 0 on")
    if moments is not None and not (moments and set(moments) <= set(range(scheme.steps + 1))):
        raise SettingError(f"moments are {moments}: expected numbers from 0 to {scheme.steps}")
    problems = _problems(data)
    seeds = [seed] * problems if isinstance(seed, int) else list(seed)
    if len(seeds) != problems:
        raise SettingError(
            f"there are {len(seeds)} seeds for {problems} problems: expected as many"
        )
    objective = Objective(f, data or (), penalty=penalty, fit=fit, sample=sample)
    w = _start_w((restarts, size), count, seeds, dtype)
    best = _Best(objective, (problems, restarts, size), dtype)
    with bar("solving", scheme.steps + 1, show=progress) as advance:

        def seen(done: int, points: Tensor, now: Tensor | None) -> None:
            if moments is None or done in moments:
                best.see(points, now)
            advance(1)

        start = None if theta is None else _start(theta, problems, restarts, dtype)
        descend(objective, count, scheme, w * scheme.spread, start, seen)
    improves = rounds > 0 and (theta is None or fit is not None)
    settled = torch.zeros_like(best.value, dtype=torch.bool)
    if improves:
        best.add(count.project(w[:, : (restarts + 1) // 2]))
        best.m, best.value, settled = exchange(
            objective, best.m, best.value, count, rounds=rounds, wide=_WIDE
        )
    found = best.solutions(settled, improves)
    return found if data is not None else found[0]


class _Best:
    """The best binary point of each restart, and how it went."""

    def __init__(
        self, objective: Objective, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        self._objective = objective
        self.m = torch.zeros(shape, dtype=torch.bool)
        self.value = torch.full(shape[:2], torch.inf, dtype=dtype)
        self.theta: Tensor | None = None
        self._trajectory: list[Tensor] = []
        self._ones: list[Tensor] = []

    def see(self, points: Tensor, theta: Tensor | None) -> None:
        """Take the binary points of a step."""
        values = self._objective.values(points.to(self.value.dtype), theta)
        self._trajectory.append(values)
        self._ones.append(points.sum(-1))
        better = values < self.value
        self.value = torch.where(better, values, self.value)
        self.m = torch.where(better[..., None], points, self.m)
        if theta is not None:
            wide = better.reshape(*better.shape, *[1] * (theta.dim() - 2))
            before = theta if self.theta is None else self.theta
            self.theta = torch.where(wide, theta, before)

    def add(self, points: Tensor) -> None:
        """Take points that no descent has led to."""
        values = self._objective.values(points.to(self.value.dtype))
        self.m, self.value = torch.cat([self.m, points], 1), torch.cat([self.value, values], 1)

    def solutions(self, settled: Tensor, improved: bool) -> list[Solution]:
        """Return the best restart of every problem."""
        if not self.value.isfinite().any(1).all():
            raise SettingError(
                "f is not finite at any binary point that was tried: expected a number for each"
            )
        dtype, found = self.value.dtype, []
        trajectory, ones = torch.stack(self._trajectory, -1), torch.stack(self._ones, -1)
        fitted = self._objective.fitted(self.m.to(dtype), self.theta)
        for problem, row in enumerate(self.value.nan_to_num(torch.inf).argmin(1).tolist()):
            restart = row % trajectory.shape[1]
            stopped: Literal["settled", "rounds", "steps"] = "steps"
            if improved:
                stopped = "settled" if settled[problem, row] else "rounds"
            found.append(
                Solution(
                    v=self.m[problem, row],
                    value=float(self.value[problem, row]),
                    theta=None if fitted is None else fitted[problem, row],
                    trajectory=trajectory[problem, restart],
                    ones=ones[problem, restart],
                    stopped=stopped,
                    evaluations=self._objective.evaluations,
                )
            )
        return found


def _count(size: int, exactly: int | None, at_most: int | None) -> Count:
    if size < 1:
        raise SettingError(f"size is {size}: expected at least 1")
    if exactly is not None and at_most is not None:
        raise SettingError("exactly and at_most are both given: choose one")
    asked = exactly if exactly is not None else at_most
    if asked is not None and not 0 <= asked <= size:
        raise SettingError(f"{asked} ones are asked for among {size}: expected 0 to {size}")
    return Count(exactly or 0, size if asked is None else asked, size)


def _problems(data: Sequence[Tensor] | None) -> int:
    if data is None:
        return 1
    sizes = {len(tensor) if tensor.dim() else -1 for tensor in data}
    if len(sizes) != 1 or min(sizes) < 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in data)
        raise SettingError(
            f"data has the shapes {shapes or 'of nothing'}: expected tensors whose first dimension is"
            " the number of problems"
        )
    return sizes.pop()


def _start_w(
    shape: tuple[int, int], count: Count, seeds: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return where w starts; without a count all places are there in the first restart only."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    w = torch.stack([torch.randn(shape, generator=one, dtype=dtype) for one in generators])
    every = 1 if count.free else shape[0]
    return torch.cat([w[:, :every].abs(), w[:, every:]], 1)


def _start(theta: Tensor, problems: int, restarts: int, dtype: torch.dtype) -> Tensor:
    theta = theta.detach().to(dtype)
    if theta.dim() > 2 and theta.shape[:2] == (problems, restarts):
        return theta
    return theta.expand(problems, restarts, *theta.shape)
