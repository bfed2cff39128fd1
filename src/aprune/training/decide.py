"""What the whole network decides before its weights move: clipping, step size and drift of w, in Triton.

These are a few numbers, and as many small operations of PyTorch's would take longer than the pass over
the weights of a small network.

The drift of w is the (k + 1)-th largest of a sample of ratios (see `descent.step`). Numbers from 0 to
1 have no more than thirty bits, and their order as bits is their order as numbers. So it is found in two
rounds, ten bits at a time, and the last ten are left away. The first counts how many ratios begin with
which digit; the program that happens to be last takes the right one, and the second round looks only at
ratios that begin like it. All of this goes on while the gradients are measured. Then one program sums up
what was measured, and works out the rest.
"""

import triton
import triton.language as tl

from aprune.training.kernels import (
    _COPIES,
    _FIELDS,
    _NARROW,
    _NUMEL,
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
"""Places in `floats` of a `descent.step.Descent`."""

PLACE, STEPS, FIRST_BAD = (tl.constexpr(place) for place in range(3))
"""Places in its `counts`."""

DIGIT, RANK, DONE, BINS = (tl.constexpr(place) for place in (0, 1, 2, 4))
"""Places in `found`: what the ratio begins with, how many of that beginning come before it, programs
that are done in this round, and the counts of each digit."""

DIGITS = tl.constexpr(1024)


@triton.jit
def decide(
    sums, chunks, lr, numbers, clip, floats, counts, total, gamma, memory, jump,
    CLIPS: tl.constexpr, ADAM: tl.constexpr, MOVES: tl.constexpr, RELATIVE: tl.constexpr,
    CHOOSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up the squares of all chunks; write the numbers of this step.

    If γ is chosen, its drift is there already, for the step size of the step before.
    """
    still = tl.zeros([BLOCK], tl.float32)
    moving = tl.zeros([BLOCK], tl.float32)
    first = 0
    while first < chunks:
        here = first + tl.arange(0, BLOCK)
        still += tl.load(sums + 3 * here, here < chunks, 0.0)
        moving += tl.load(sums + 3 * here + 1, here < chunks, 0.0)
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
def share(sums, parts, table, numbers, floats, shares, layer_share, most, BLOCK: tl.constexpr):
    """Write how far w moves in all of a tensor: by its mean gradient, but not too far.

    `parts` says at which chunk each tensor begins, and how many it has.
    """
    tensor = tl.program_id(0)
    begin, chunks = tl.load(parts + 2 * tensor), tl.load(parts + 2 * tensor + 1)
    together = tl.zeros([BLOCK], tl.float32)
    first = 0
    while first < chunks:
        here = first + tl.arange(0, BLOCK)
        together += tl.load(sums + 3 * (begin + here) + 2, here < chunks, 0.0)
        first += BLOCK
    mean = tl.sum(together) / tl.load(table + tensor * _FIELDS + _NUMEL).to(tl.float32)
    move = layer_share * tl.load(numbers + ALPHA) * mean
    most = most * tl.load(floats + STEP_SIZE)
    tl.store(shares + tensor, tl.minimum(tl.maximum(move, -most), most))


@triton.jit
def look_up(
    table, gradients, places, ratios, numbers, counts, found, runs, t_s,
    RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Write how far each of a sample of connections is from going, from 0 to 1; do the first round.

    They are given in runs: 2⁴⁰ times the number of the tensor, plus where in it the run begins.
    """
    number = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    place = tl.load(places + number, number < runs, 0)
    tensor = place >> 40
    row = table + tensor * _FIELDS
    copies = tl.load(row + _COPIES).to(tl.int32)[:, None]
    half = (tl.load(row + _NARROW) > 0)[:, None]
    here = (place & ((1 << 40) - 1))[:, None] + tl.arange(0, RUN)[None, :]
    real = (number < runs)[:, None] & (here < tl.load(row + _NUMEL)[:, None])
    w_at = tl.load(row + _W).to(tl.pointer_type(tl.float32))[:, None]
    theta_at = tl.load(row + _THETA).to(tl.pointer_type(tl.float32))[:, None]
    gradient_at = tl.load(gradients + tensor)[:, None]
    there = tl.where(copies > 1, here // copies, here)
    w = tl.load(w_at + here, real, -2.0)
    theta = tl.load(theta_at + here, real, 0.0)
    narrow = tl.load(gradient_at.to(tl.pointer_type(tl.bfloat16)) + there, real & half, 0.0)
    wide = tl.load(gradient_at.to(tl.pointer_type(tl.float32)) + there, real & (half == 0), 0.0)
    slope = (narrow.to(tl.float32) + wide) * theta * _warm_slope(w, t_s)
    ratio = (w - tl.load(numbers + ALPHA) * slope) / tl.where(w > -1.0, 1.0 + w, 1.0)
    ratio = tl.where((w > -1.0) & (ratio > 0.0), tl.where(ratio < 1.0, ratio, 1.0), 0.0)
    bits = ratio.to(tl.int32, bitcast=True)
    to = number[:, None] * RUN + tl.arange(0, RUN)[None, :]
    tl.store(ratios + to, bits, (number < runs)[:, None])
    bits = tl.ravel(bits)  # once: it may bring them into any order
    seen = tl.histogram(bits >> 20, DIGITS, mask=bits > 0)  # many have the same digit
    tl.atomic_add(found + BINS + tl.arange(0, DIGITS), seen, mask=seen > 0, sem="relaxed")
    if _is_last(found):
        first, rank = _find(found, tl.load(counts + PLACE).to(tl.int32))
        tl.store(found + DIGIT, first)
        tl.store(found + RANK, rank)


@triton.jit
def narrow_down(ratios, numbers, floats, found, total, BLOCK: tl.constexpr):
    """Do the second round, and write the drift."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(ratios + number, number < total, 0)
    first = tl.load(found + DIGIT)
    here = (bits > 0) & (bits >> 20 == first)
    tl.atomic_add(found + BINS + ((bits >> 10) & (DIGITS - 1)), 1, mask=here, sem="relaxed")
    if _is_last(found):
        second, _ = _find(found, tl.load(found + RANK))
        drift = ((first << 20) | (second << 10)).to(tl.float32, bitcast=True)
        tl.store(numbers + DRIFT, drift * tl.load(floats + GOES))


@triton.jit
def _is_last(found):
    tl.debug_barrier()
    return tl.atomic_add(found + DONE, 1) == tl.num_programs(0) - 1


@triton.jit
def _find(found, rank):
    """Return the digit of the ratio that `rank` others are larger than, and its rank among its like.

    Zeros are not counted: there are many, and all in one place would be slow. Where the ratio is one of
    them, the rank lies behind all that are counted, no digit is right, and 0 comes out.
    """
    digits = tl.arange(0, DIGITS)
    seen = tl.load(found + BINS + digits, cache_modifier=".cg")
    above = tl.sum(seen) - tl.cumsum(seen, 0)
    right = (above <= rank) & (rank < above + seen)
    tl.store(found + DONE, 0)
    tl.store(found + BINS + digits, tl.zeros([DIGITS], tl.int32))
    return tl.sum(tl.where(right, digits, 0)), rank - tl.sum(tl.where(right, above, 0))
