"""From scores to masks with an exact number of connections, and exact numbers from a sparsity."""

import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from aprune.errors import SettingError


def check_sparsity(sparsity: float) -> float:
    """Return `sparsity` as a float if it is a fraction that can be removed.

    Args:
        sparsity: the fraction of connections to remove, 0 ≤ s < 1.

    Raises:
        SettingError: if it is anything else.

    Example:
        >>> check_sparsity(0.95)
        0.95
    """
    try:
        value = float(sparsity)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < 1:
        raise SettingError(
            f"sparsity is the fraction removed: got {sparsity}, expected at least 0 and below 1"
        )
    return value


def keep_count(total: int, sparsity: float) -> int:
    """Count the connections that a sparsity leaves: round(D·(1 − s)), half to even.

    The sparsity is taken as the decimal number that it prints as: 0.9 is nine tenths, not the
    binary fraction beside it.

    Args:
        total: D, the number of connections of the parent.
        sparsity: s, the fraction to remove.

    Returns:
        The number to keep, at least 1.

    Example:
        >>> keep_count(139_597_504, 0.99)
        1395975
        >>> keep_count(15, 0.9)  # 1.5, while 15 * (1 - 0.9) is 1.4999999999999996
        2
    """
    removed = Fraction(repr(check_sparsity(sparsity)))
    kept = round(total * (1 - removed))
    if kept < 1:
        raise SettingError(
            f"sparsity {sparsity} leaves nothing of {total:,} connections: choose a lower one"
        )
    return kept


def keep_largest(scores: Mapping[str, Tensor], kept: int) -> dict[str, Tensor]:
    """Mark the `kept` largest of all scores together.

    Equal scores go by index: first the order of the mapping, then the row-major index within a
    tensor, whatever its memory format. So for one set of scores fewer connections are always a
    subset of more. A score of −inf is kept last.

    This takes one copy of the scores, and about a second for 140 M of them.

    Args:
        scores: tensors of any shape, real dtype and device, by name.
        kept: how many to keep over all of them.

    Returns:
        Boolean masks with the shapes and on the devices of the scores, `kept` of them true.

    Raises:
        SettingError: if a score is NaN or there are fewer than `kept`.

    Example:
        >>> masks = keep_largest({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([3.0, 9.0])}, 2)
        >>> masks["a"].tolist(), masks["b"].tolist()
        ([True, False], [False, True])
    """
    for name, score in scores.items():
        if bool(score.isnan().any()):
            raise SettingError(
                f"a score of {name!r} is not a number (NaN): the weight or the gradient that it "
                "comes from has overflowed; a lower learning rate may help"
            )
    dtype = _common_dtype(scores)
    threshold, ties = _find_threshold(scores, kept, dtype)
    masks = {}
    for name, score in scores.items():
        same = score.detach().to(dtype)
        # Contiguous, whatever the scores are: ties are taken in row-major order.
        mask = (same > threshold).contiguous()
        if ties:
            equal = _first((same == threshold).reshape(-1), ties)
            ties -= _count(equal)
            mask.view(-1).logical_or_(equal)
        masks[name] = mask
    return masks


def shrink(
    masks: Mapping[str, Tensor], scores: Mapping[str, Tensor], kept: int
) -> dict[str, Tensor]:
    """Mark the `kept` largest scores among what `masks` have left, which is as many at least.

    Example:
        >>> left = {"a": torch.tensor([True, True, False])}
        >>> shrink(left, {"a": torch.tensor([1.0, 2.0, 9.0])}, 1)["a"].tolist()
        [False, True, False]
    """
    inside = {name: torch.where(masks[name], s, -torch.inf) for name, s in scores.items()}
    return keep_largest(inside, kept)


def keep_by_layer(scores: Mapping[str, Tensor], kept: Mapping[str, int]) -> dict[str, Tensor]:
    """Mark the largest scores of each tensor, as many as `kept` says for it.

    Example:
        >>> marked = keep_by_layer({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([8.0, 9.0])},
        ...                        {"a": 1, "b": 1})
        >>> marked["a"].tolist(), marked["b"].tolist()
        ([True, False], [False, True])
    """
    return {name: keep_largest({name: s}, kept[name])[name] for name, s in scores.items()}


def spread_evenly(sizes: Mapping[str, int], kept: int) -> dict[str, int]:
    """Share `kept` connections out so that every tensor has the same density.

    Each gets kept·size/total, rounded down; what is missing goes one by one to the largest
    remainders, the earlier tensor first where they are equal.

    Args:
        sizes: the number of connections of each tensor.
        kept: how many to keep in all.

    Returns:
        A number for each tensor, at most its size; their sum is `kept`.

    Example:
        >>> spread_evenly({"a": 10, "b": 10, "c": 5}, 7)
        {'a': 3, 'b': 3, 'c': 1}
    """
    total = sum(sizes.values())
    _check_kept(kept, total)
    return _share(kept, sizes) if total else dict.fromkeys(sizes, 0)


def spread_erk(shapes: Mapping[str, tuple[int, ...]], kept: int) -> dict[str, int]:
    """Share `kept` connections out by the Erdős–Rényi-kernel rule: small tensors stay denser.

    The density of a tensor is in proportion to the sum of its dimensions over their product, and 1 at
    most; what such a full tensor cannot take goes to the others in their proportions.

    Args:
        shapes: the shape of each tensor.
        kept: how many to keep in all.

    Returns:
        A number for each tensor, at most its size; their sum is `kept`.

    Example:
        >>> spread_erk({"wide": (40, 100), "last": (10, 40)}, 950)  # 140 : 50, of 4,000 and of 400
        {'wide': 700, 'last': 250}
        >>> spread_erk({"wide": (40, 100), "last": (10, 40)}, 2_000)
        {'wide': 1600, 'last': 400}
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return spread_in_proportion(sizes, {n: sum(shape) or 1 for n, shape in shapes.items()}, kept)


def spread_in_proportion(
    sizes: Mapping[str, int], parts: Mapping[str, int], kept: int
) -> dict[str, int]:
    """Share `kept` connections out in proportion to `parts`, but to none more than its size.

    What a full tensor cannot take goes to the others in their proportions; what tensors without a part
    have to take is shared out evenly among them.

    Args:
        sizes: the number of connections of each tensor.
        parts: whole numbers, none of them negative.
        kept: how many to keep in all.

    Returns:
        A number for each tensor, at most its size; their sum is `kept`.

    Example:
        >>> spread_in_proportion({"a": 100, "b": 10}, {"a": 1, "b": 1}, 50)
        {'a': 40, 'b': 10}
    """
    _check_kept(kept, sum(sizes.values()))
    counts = {name: 0 for name, part in parts.items() if part == 0}
    left, open_ = kept, {name: part for name, part in parts.items() if part}
    while open_:
        total = sum(open_.values())
        full = [name for name, part in open_.items() if left * part >= sizes[name] * total]
        if not full:
            counts |= _share(left, open_)
            left = 0
            break
        for name in full:
            counts[name] = sizes[name]
            left -= sizes[name]
            del open_[name]
    if left:
        empty = {name: sizes[name] for name, part in parts.items() if part == 0}
        counts |= spread_evenly(empty, left)
    return {name: counts[name] for name in sizes}


def _share(kept: int, parts: Mapping[str, int]) -> dict[str, int]:
    """Share a number out in proportion, whole, the largest remainders first."""
    total = sum(parts.values())
    counts = {name: kept * part // total for name, part in parts.items()}
    by_remainder = sorted(parts, key=lambda name: kept * parts[name] % total, reverse=True)
    for name in by_remainder[: kept - sum(counts.values())]:
        counts[name] += 1
    return counts


def choose_random(
    shapes: Mapping[str, tuple[int, ...]], kept: Mapping[str, int], generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw masks with exact counts, every choice of the places being equally likely.

    Args:
        shapes: the shape of each mask.
        kept: how many are true in each mask.
        generator: a CPU generator; its state decides the result.

    Returns:
        Boolean masks on the CPU.

    Example:
        >>> masks = choose_random({"a": (4, 5)}, {"a": 7}, torch.Generator().manual_seed(0))
        >>> masks["a"].shape, int(masks["a"].sum())
        (torch.Size([4, 5]), 7)
    """
    masks = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        _check_kept(kept[name], size)
        masks[name] = _draw(size, kept[name], generator).view(shape)
    return masks


def _check_kept(kept: int, total: int) -> None:
    if not 0 <= kept <= total:
        raise SettingError(
            f"cannot keep {kept:,} of {total:,} connections: expected a number from 0 to {total:,}"
        )


def _common_dtype(scores: Mapping[str, Tensor]) -> torch.dtype:
    """Find one dtype to compare all scores in, and which numpy knows."""
    dtypes = {score.dtype for score in scores.values()}
    floating = {dtype for dtype in dtypes if dtype.is_floating_point}
    if not floating:
        return torch.int64
    return torch.float32 if dtypes == floating - {torch.float64} else torch.float64


def _find_threshold(
    scores: Mapping[str, Tensor], kept: int, dtype: torch.dtype
) -> tuple[float, int]:
    """Find the `kept`-th largest score, and how many of those that equal it are to be kept."""
    total = sum(score.numel() for score in scores.values())
    _check_kept(kept, total)
    if kept == 0:
        return math.inf, 0
    flat = torch.empty(total, dtype=dtype, device=next(iter(scores.values())).device)
    end = 0
    for score in scores.values():
        begin, end = end, end + score.numel()
        flat[begin:end].view(score.shape).copy_(score.detach())
    if flat.is_cuda:
        threshold = _bisect(flat, kept)
    else:
        # Several times as fast as torch's own on the CPU, which would also carry the indices.
        flat.numpy().partition(total - kept)
        threshold = flat[total - kept].item()
    return threshold, kept - _count(flat > threshold)


def _bisect(flat: Tensor, kept: int) -> float:
    """Find the `kept`-th largest value by counting what lies above a guess.

    The guesses are bit patterns, so as many as a number has bits lead to the very value. On a GPU
    counting is quick, while `kthvalue` refuses to run where results must be reproducible and
    sorting takes six times the memory.
    """
    keys = flat.view(torch.int32 if flat.dtype is torch.float32 else torch.int64)
    floating = flat.is_floating_point()
    if floating:
        _flip_negative(keys)
    low, high = torch.iinfo(keys.dtype).min, torch.iinfo(keys.dtype).max
    while low < high:
        middle = (low + high + 1) // 2
        if _count(keys >= middle) >= kept:
            low = middle
        else:
            high = middle - 1
    found = torch.tensor([low], dtype=keys.dtype)
    if floating:
        _flip_negative(keys)
        _flip_negative(found)
    return found.view(flat.dtype).item()


def _flip_negative(keys: Tensor) -> None:
    """Turn the bits of floats into integers of the same order, or back, in place.

    Read as integers, the bits of negative floats are in reverse order: all but their sign is
    inverted.
    """
    info = torch.iinfo(keys.dtype)
    for piece in torch.split(keys, 2**24):  # so that it needs little memory
        piece ^= (piece >> (info.bits - 1)) & info.max


def _count(marked: Tensor) -> int:
    """Count what is true, piece by piece: a GPU makes 8 bytes of each before it adds them up."""
    return sum(int(piece.count_nonzero()) for piece in torch.split(marked, 2**24))


def _first(marked: Tensor, count: int) -> Tensor:
    """Keep the first `count` that are true, in place; the others become false."""
    for piece in torch.split(marked, 2**22):  # so that the indices need little memory
        found = int(piece.count_nonzero())
        if found > count:
            after = int(piece.nonzero()[count - 1]) + 1 if count else 0
            piece[after:] = False
        count = max(0, count - found)
    return marked


def _draw(size: int, kept: int, generator: torch.Generator) -> Tensor:
    """Toss a coin for most places, then draw the missing ones.

    Given their number, places chosen by coin are equally likely, whatever the odds; adding places
    that are drawn one after another, and passing over those that are there, keeps them so. Of two
    halves the smaller is drawn, so every second place is free or more.
    """
    fewer = min(kept, size - kept)
    drawn = torch.zeros(size, dtype=torch.bool)
    # Six standard deviations below what is wanted: once in 10⁹ times there are too many.
    odds = (fewer - 6 * math.sqrt(fewer)) / max(size, 1)
    missing = fewer - _toss(drawn, odds, generator)
    while missing < 0:
        missing = fewer - _toss(drawn, odds, generator)
    while missing:
        # From a range much larger than `size`, so that the remainder is uniform to 1 in 2³⁰; and
        # never more than are missing, so that none has to be taken back.
        places = torch.randint(2**62, (missing,), generator=generator).remainder_(size).unique()
        places = places[~drawn[places]]
        drawn[places] = True
        missing -= places.numel()
    return drawn if fewer == kept else drawn.logical_not_()


def _toss(drawn: Tensor, odds: float, generator: torch.Generator) -> int:
    """Fill a mask by tossing a coin for each place, and count."""
    if odds <= 0:
        return 0
    for piece in torch.split(drawn, 2**22):  # so that the random numbers need little memory
        torch.lt(torch.rand(piece.numel(), generator=generator), odds, out=piece)
    return int(drawn.count_nonzero())
