"""What the whole network decides before its weights move: clipping, step size and drift of w, in Triton.

These are a few numbers, and as many small operations of PyTorch's would take longer than the pass over
the weights of a small network.

The drift of w is the (k + 1)-th largest of a sample of ratios (see `methods.descent`). It is found in
three rounds, ten bits at a time: a number from 0 to 1 has no more than thirty, and their order as bits
is their order as numbers. Each round counts how many ratios have which digit there; the program that
happens to be last takes the digit, and the next round looks only at ratios that begin like it. All of
this goes on while the gradients are measured. Then one program sums up what was measured, and works out
the rest.
"""

import triton
import triton.language as tl

from aprune.training.kernels import (
    _COPIES,
    _FIELDS,
    _NARROW,
    _THETA,
    _W,
    ALPHA,
    CLIP,
    CORRECTION,
    DRIFT,
    LR,
    ROOT,
    SECOND,
    _warm_slope,
)

STEP_SIZE, GOES, MEAN_SQUARE, WEIGHT = (tl.constexpr(place) for place in range(4))
"""Places in `floats` of a `methods.descent.Descent`."""

PLACE, STEPS, FIRST_BAD = (tl.constexpr(place) for place in range(3))
"""Places in its `counts`."""

PREFIX, RANK, DONE, BINS = (tl.constexpr(place) for place in (0, 1, 2, 4))
"""Places in `found`: what the ratio begins with, how many of that beginning come before it, programs
that are done in this round, and the counts of each digit."""

DIGITS = tl.constexpr(1024)


@triton.jit
def decide(
    squares, chunks, lr, numbers, floats, counts, clip, total, gamma, memory, jump,
    CLIPS: tl.constexpr, ADAM: tl.constexpr, MOVES: tl.constexpr, RELATIVE: tl.constexpr,
    CHOOSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the squares of all chunks; write the numbers of this step.

    If γ is chosen, its drift is there already, for the step size of the step before.
    """
    still = tl.zeros([BLOCK], tl.float32)
    moving = tl.zeros([BLOCK], tl.float32)
    first = 0
    while first < chunks:
        here = first + tl.arange(0, BLOCK)
        still += tl.load(squares + 2 * here, here < chunks, 0.0)
        moving += tl.load(squares + 2 * here + 1, here < chunks, 0.0)
        first += BLOCK
    tl.store(numbers + LR, tl.load(lr))
    if CLIPS:
        factor = clip / (tl.sqrt(tl.sum(still)) + 1e-6)
        tl.store(numbers + CLIP, tl.where(factor > 1.0, 1.0, factor))
    if ADAM:
        # 1 − βᵗ⁺¹ = β·(1 − βᵗ) + 1 − β: the difference itself would lose digits
        tl.store(numbers + CORRECTION, 0.9 * tl.load(numbers + CORRECTION) + (1.0 - 0.9))
        second = 0.999 * tl.load(numbers + SECOND) + (1.0 - 0.999)
        tl.store(numbers + SECOND, second)
        tl.store(numbers + ROOT, tl.sqrt(second))
    if MOVES:
        square = tl.sum(moving) / total
        step = tl.load(counts + STEPS)
        tl.store(counts + STEPS, step + 1)
        if not (square < float("inf")):
            tl.store(counts + FIRST_BAD, tl.minimum(tl.load(counts + FIRST_BAD), step))
        alpha = tl.load(floats + STEP_SIZE)
        if RELATIVE:
            before, weight = tl.load(floats + MEAN_SQUARE), tl.load(floats + WEIGHT)
            mean = before + (1.0 - memory) * (square - before)
            weight = weight + (1.0 - memory) * (1.0 - weight)
            tl.store(floats + MEAN_SQUARE, mean)
            tl.store(floats + WEIGHT, weight)
            mean = mean / weight
            root = tl.sqrt(tl.where(mean > square, mean, square))
            alpha = tl.where(root > 0.0, alpha / tl.where(root > 0.0, root, 1.0), 0.0)
        if CHOOSES:
            if alpha * jump < tl.load(numbers + ALPHA):
                tl.store(numbers + DRIFT, 0.0)
        else:
            tl.store(numbers + DRIFT, 2.0 * alpha * gamma)
        tl.store(numbers + ALPHA, alpha)


@triton.jit
def look_up(
    table, gradients, places, ratios, numbers, floats, counts, found, total, t_s,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write how far each of a sample of connections is from going, from 0 to 1; do the first round.

    A place is given as 2⁴⁰ times the number of its tensor, plus its offset there.
    """
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = number < total
    place = tl.load(places + number, real, 0)
    tensor = place >> 40
    here = place & ((1 << 40) - 1)
    row = table + tensor * _FIELDS
    w = tl.load(tl.load(row + _W).to(tl.pointer_type(tl.float32)) + here, real, 0.0)
    theta = tl.load(tl.load(row + _THETA).to(tl.pointer_type(tl.float32)) + here, real, 0.0)
    gradient = tl.load(gradients + tensor)
    there = here // tl.load(row + _COPIES)
    half = tl.load(row + _NARROW) > 0
    narrow = tl.load(gradient.to(tl.pointer_type(tl.bfloat16)) + there, real & half, 0.0)
    wide = tl.load(gradient.to(tl.pointer_type(tl.float32)) + there, real & (half == 0), 0.0)
    slope = (narrow.to(tl.float32) + wide) * theta * _warm_slope(w, t_s)
    ratio = (w - tl.load(numbers + ALPHA) * slope) / tl.where(w > -1.0, 1.0 + w, 1.0)
    ratio = tl.where((w > -1.0) & (ratio > 0.0), tl.where(ratio < 1.0, ratio, 1.0), 0.0)
    tl.store(ratios + number, ratio, real)
    _round(ratio, real, 0, tl.load(counts + PLACE).to(tl.int32), numbers, floats, found, 20)


@triton.jit
def narrow_down(ratios, numbers, floats, found, total, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Do the round of the digit that is `SHIFT` bits up; the last writes the drift."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ratio = tl.load(ratios + number, number < total, 0.0)
    prefix, rank = tl.load(found + PREFIX), tl.load(found + RANK)
    real = (number < total) & (ratio.to(tl.int32, bitcast=True) >> (SHIFT + 10) == prefix)
    _round(ratio, real, prefix, rank, numbers, floats, found, SHIFT)


@triton.jit
def _round(ratio, real, prefix, rank, numbers, floats, found, SHIFT: tl.constexpr):
    digit = (ratio.to(tl.int32, bitcast=True) >> SHIFT) & (DIGITS - 1)
    bins = found + BINS + tl.arange(0, DIGITS)
    seen = tl.histogram(digit, DIGITS, mask=real)
    tl.atomic_add(bins, seen, mask=seen > 0, sem="relaxed")
    tl.debug_barrier()
    if tl.atomic_add(found + DONE, 1) == tl.num_programs(0) - 1:
        seen = tl.load(bins, cache_modifier=".cg")
        until = tl.cumsum(seen, 0)
        above = tl.sum(seen) - until
        right = (above <= rank) & (rank < above + seen)
        longer = prefix * DIGITS + tl.sum(tl.where(right, tl.arange(0, DIGITS), 0))
        tl.store(found + PREFIX, longer)
        tl.store(found + RANK, rank - tl.sum(tl.where(right, above, 0)))
        tl.store(found + DONE, 0)
        tl.store(bins, tl.zeros([DIGITS], tl.int32))
        if SHIFT == 0:
            tl.store(numbers + DRIFT, longer.to(tl.float32, bitcast=True) * tl.load(floats + GOES))
