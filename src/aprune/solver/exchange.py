"""Single ones exchanged for the better, until no exchange helps."""

import torch
from torch import Tensor

from aprune.solver.objective import Objective
from aprune.solver.scheme import Count

_PAIRS = 8  # that are tried of every point before the best one is looked at more closely
_LAST = 256  # that are tried of the best one
_SAME = 1e-12  # relative; equal up to rounding is no reason to go on


def exchange(
    objective: Objective, m: Tensor, value: Tensor, count: Count, *, rounds: int, wide: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Go from every point to its best neighbour as long as that is better.

    At first all points go on, with the most promising pairs of places; of points that meet only one
    goes on. Then the best point of each problem does, and many more of its pairs are tried whenever
    the first ones do not help.

    Args:
        objective: What is minimised; θ is fitted to every point, or there is none.
        m: Binary points [P, R, D].
        value: Their values [P, R].
        count: How many ones there may be.
        rounds: At most so many times.
        wide: Places to try on either side, the most promising ones.

    Returns:
        Points, values, and which [P, R] are settled: no neighbour that was tried is better.
    """
    m, value = m.clone(), value.clone()
    _, left = _improve(objective, m, value, count, rounds, wide, _PAIRS)
    at = (torch.arange(len(m))[:, None], value.nan_to_num(torch.inf).argmin(1, keepdim=True))
    point, least = m[at], value[at]
    done = torch.zeros_like(least, dtype=torch.bool)
    while left and not done.all():
        done, _ = _improve(objective, point, least, count, 1, wide, _LAST)
        _, left = _improve(objective, point, least, count, left - 1, wide, _PAIRS, done)
    settled = torch.zeros_like(value, dtype=torch.bool)
    m[at], value[at], settled[at] = point, least, done
    return m, value, settled


def _improve(
    objective: Objective,
    m: Tensor,
    value: Tensor,
    count: Count,
    rounds: int,
    wide: int,
    pairs: int,
    done: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Improve points in place, but for those that are done; return which are, and the rounds left."""
    if count.most == 0:
        return torch.ones_like(value, dtype=torch.bool), rounds
    done = torch.zeros_like(value, dtype=torch.bool) if done is None else done.clone()
    for left in range(rounds, 0, -1):
        done |= _repeats(m)
        active = (~done).any(1).nonzero().flatten()
        if len(active) == 0:
            return done, left
        # those that go on come first; problems with fewer of them take some of the others along
        most = int((~done).sum(1).max())
        rows = done[active].sort(dim=1, stable=True).indices[:, :most]
        part, at = objective.of(active), (active[:, None], rows)
        here, now = m[at], value[at]
        points, possible = neighbours_of(part, here, count, wide, pairs, value.dtype)
        around = points.shape[2]
        values = part.values(points.flatten(1, 2).to(value.dtype)).reshape(-1, most, around)
        objective.evaluations += part.evaluations
        least = torch.where(possible, values, torch.inf).min(-1)
        better = least.values < now - _SAME * now.abs().clamp(min=1.0)
        best = points.gather(2, least.indices[..., None, None].expand(-1, -1, 1, m.shape[-1]))
        m[at] = torch.where(better[..., None], best.squeeze(2), here)
        value[at] = torch.where(better, least.values, now)
        done[at] = ~better
    return done, 0


def _repeats(m: Tensor) -> Tensor:
    """Return which points [P, R] are the same as an earlier one: that one stands for them."""
    same = (m[:, :, None] == m[:, None]).all(-1)
    return same.tril(-1).any(-1)


def neighbours_of(
    objective: Objective, m: Tensor, count: Count, wide: int, pairs: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the points that differ from `m` in one place, or in two that are exchanged.

    Of the latter only the most promising pairs. What a pair promises is known from a survey of the
    point without the one that goes: its value, and what the one that comes would be worth there.

    Returns:
        Binary points [P, R, N, D], and which of them [P, R, N] are possible.
    """
    _, worth = objective.survey(m.to(kind))
    ones = m.sum(-1, keepdim=True)
    drops = torch.where(m, -worth, torch.inf).topk(min(wide, count.most), largest=False)
    sets, possible = [], []
    if count.least < count.most:
        adds = torch.where(m, torch.inf, worth).topk(min(wide, count.size), largest=False)
        for places, may in ((adds, ones < count.most), (drops, ones > count.least)):
            sets.append(_flipped(m, places.indices[..., None]))
            possible.append(places.values.isfinite() & may)
    without = _flipped(m, drops.indices[..., None])
    values, worth = objective.survey(without.flatten(1, 2).to(kind))
    promise = values[..., None] + worth
    promise = promise.reshape(*m.shape[:2], -1, count.size)
    there = drops.values.isfinite()[..., None] & ~m[:, :, None]
    promise = torch.where(there, promise, torch.inf).flatten(2)
    chosen = promise.topk(min(pairs, promise.shape[-1]), largest=False)
    comes = chosen.indices % count.size
    goes = drops.indices.gather(-1, chosen.indices // count.size)
    sets.append(_flipped(m, torch.stack([comes, goes], -1)))
    possible.append(chosen.values.isfinite())
    return torch.cat(sets, 2), torch.cat(possible, 2)


def _flipped(m: Tensor, places: Tensor) -> Tensor:
    """Return a copy of m [P, R, D] for each set of places [P, R, N, 1 or 2], flipped there."""
    points = m[:, :, None].expand(-1, -1, places.shape[2], -1).clone()
    return points.scatter(-1, places, ~points.gather(-1, places))
