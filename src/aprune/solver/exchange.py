"""Single ones exchanged for the better, until no exchange helps."""

import torch
from torch import Tensor

from aprune.solver.objective import Objective
from aprune.solver.scheme import Count

_SAME = 1e-12  # relative; equal up to rounding is no reason to go on


def exchange(
    objective: Objective, m: Tensor, value: Tensor, count: Count, *, rounds: int, wide: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Go from every point to its best neighbour as long as that is better.

    Args:
        objective: What is minimised; θ is fitted to every point, or there is none.
        m: Binary points [P, R, D].
        value: Their values [P, R].
        count: How many ones there may be.
        rounds: At most so many times.
        wide: Places to try on either side, the most promising ones by the gradient.

    Returns:
        Points, values, and of which no neighbour that was tried is better.
    """
    m, value = m.clone(), value.clone()
    done = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(rounds):
        active = (~done).any(1).nonzero().flatten()
        if len(active) == 0:
            break
        part, here = objective.of(active), m[active]
        points, possible = neighbours_of(part, here, count, wide, value.dtype)
        rows, around = here.shape[1], points.shape[2]
        if around == 0:  # all of them, or none: nothing can be exchanged
            return m, value, ~done
        flat = points.flatten(1, 2)
        values = part.values(flat.to(value.dtype)).reshape(-1, rows, around)
        least = torch.where(possible, values, torch.inf).min(-1)
        objective.evaluations += part.evaluations
        now = value[active]
        better = least.values < now - _SAME * now.abs().clamp(min=1.0)
        best = points.gather(2, least.indices[..., None, None].expand(-1, -1, 1, m.shape[-1]))
        m[active] = torch.where(better[..., None], best.squeeze(2), here)
        value[active] = torch.where(better, least.values, now)
        done[active] = ~better
    return m, value, done


def neighbours_of(
    objective: Objective, m: Tensor, count: Count, wide: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the points that differ from `m` in one place, or in two that are exchanged.

    Returns:
        Binary points [P, R, N, D], and which of them [P, R, N] are possible.
    """
    slope, _ = objective.slopes(m.to(kind), None, 0)
    off = torch.where(m, torch.inf, slope)
    on = torch.where(m, -slope, torch.inf)
    adds = off.topk(min(wide, count.size - count.least), largest=False)
    drops = on.topk(min(wide, count.most), largest=False)
    ones = m.sum(-1, keepdim=True)
    sets, possible = [], []
    if count.least < count.most:
        for places, may in ((adds, ones < count.most), (drops, ones > count.least)):
            sets.append(_flipped(m, places.indices[..., None]))
            possible.append(places.values.isfinite() & may)
    a, d = adds.indices.shape[-1], drops.indices.shape[-1]
    pairs = torch.stack(
        [
            adds.indices.repeat_interleave(d, -1),
            drops.indices.repeat(*[1] * (m.dim() - 1), a),
        ],
        -1,
    )
    sets.append(_flipped(m, pairs))
    there = adds.values.isfinite()[..., :, None] & drops.values.isfinite()[..., None, :]
    possible.append(there.flatten(-2))
    return torch.cat(sets, 2), torch.cat(possible, 2)


def _flipped(m: Tensor, places: Tensor) -> Tensor:
    """Return a copy of m [P, R, D] for each set of places [P, R, N, 1 or 2], flipped there."""
    points = m[:, :, None].expand(-1, -1, places.shape[2], -1).clone()
    return points.scatter(-1, places, ~points.gather(-1, places))
