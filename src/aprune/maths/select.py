"""From scores to masks with an exact number of connections, and exact numbers from a sparsity."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import reduce

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
        >>> keep_count(139_570_240, 0.99)
        1395702
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

    The threshold is found digit by digit with histograms (radix selection), which is exact, needs
    no copy of the scores and runs where they live.

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
    _check_kept(kept, sum(score.numel() for score in scores.values()))
    masks = {
        name: torch.zeros(score.shape, dtype=torch.bool, device=score.device)
        for name, score in scores.items()
    }
    dtype = _common_dtype(scores)
    for name, score in scores.items():
        _check_numbers(name, score)
    if kept == 0:
        return masks
    threshold, ties = _find_threshold(scores, kept, dtype)
    for name, score in scores.items():
        flat = masks[name].view(-1)
        for start, keys in _pieces(score, dtype):
            chosen = keys > threshold
            if ties:
                equal = _first(keys == threshold, ties)
                ties -= int(equal.count_nonzero())
                chosen |= equal
            flat[start : start + chosen.numel()] = chosen
    return masks


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
    if total == 0:
        return dict.fromkeys(sizes, 0)
    counts = {name: kept * size // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: kept * sizes[name] % total, reverse=True)
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


def _check_numbers(name: str, score: Tensor) -> None:
    if score.is_complex():
        raise SettingError(f"the scores of {name!r} are complex: expected real numbers")
    if any(bool(piece.isnan().any()) for piece in _split(score)):
        raise SettingError(
            f"a score of {name!r} is not a number (NaN): the gradient or the weight that it comes "
            "from has overflowed, so lower the learning rate"
        )


def _common_dtype(scores: Mapping[str, Tensor]) -> torch.dtype:
    """Find one dtype in which all scores can be compared: 32 bits where no score has more."""
    common = reduce(torch.promote_types, (s.dtype for s in scores.values()), torch.bool)
    if not common.is_floating_point:
        return torch.int64
    return torch.float64 if common is torch.float64 else torch.float32


def _split(score: Tensor) -> tuple[Tensor, ...]:
    """Cut the scores, in row-major order, into pieces that fit a cache or fill a GPU."""
    return torch.split(score.detach().reshape(-1), 2**24 if score.is_cuda else 2**18)


def _pieces(score: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Yield (first index, integers in the order of the scores) in row-major order.

    The bits of a positive float, read as an integer, are ordered as the float is; those of a
    negative one the other way round, which flipping all but the sign repairs.
    """
    start = 0
    for piece in _split(score):
        keys = piece.to(dtype)
        if dtype.is_floating_point:
            # Adding zero turns −0 into 0, which is its equal.
            keys = (keys + 0.0).view(torch.int64 if dtype is torch.float64 else torch.int32)
            info = torch.iinfo(keys.dtype)
            keys ^= (keys >> (info.bits - 1)) & info.max
        yield start, keys
        start += piece.numel()


def _find_threshold(scores: Mapping[str, Tensor], kept: int, dtype: torch.dtype) -> tuple[int, int]:
    """Find the key of the `kept`-th largest score, and how many equal to it are to be kept."""
    width = 32 if dtype is torch.float32 else 64
    threshold, missing = 0, kept
    for shift in range(width - 16, -1, -16):
        leading = shift == width - 16
        counts = torch.zeros(2**16, dtype=torch.int64)
        for score in scores.values():
            for _, keys in _pieces(score, dtype):
                digits = keys >> shift
                if leading:
                    digits += 2**15  # the sign is in here: −2¹⁵ … 2¹⁵ − 1 becomes 0 … 2¹⁶ − 1
                else:
                    digits = digits[(digits >> 16) == threshold] & (2**16 - 1)
                counts += torch.bincount(digits, minlength=2**16).cpu()
        from_above = counts.flip(0).cumsum(0)
        place = int(torch.searchsorted(from_above, missing))
        digit = 2**16 - 1 - place
        missing -= int(from_above[place] - counts[digit])
        threshold = digit - 2**15 if leading else (threshold << 16) + digit
    return threshold, missing


def _first(marked: Tensor, count: int) -> Tensor:
    """Keep the first `count` that are true, in place."""
    if int(marked.count_nonzero()) > count:
        marked[int(marked.nonzero()[count - 1]) + 1 :] = False
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
    for piece in _split(drawn):
        torch.lt(torch.rand(piece.numel(), generator=generator), odds, out=piece)
    return int(drawn.count_nonzero())
