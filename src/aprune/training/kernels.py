"""One pass over all weights of a network: what a search or a masked training does to them, in Triton.

A network has dozens of tensors, and an update of each is a launch of its own. Here one launch goes over
all tensors of a kind: they are cut into chunks, and each chunk finds its tensor in a table of addresses.
A chunk is worked through in pieces, so that finding it costs little beside the work. The arithmetic is
that of `maths.relaxation`, `descent.step` and PyTorch's SGD and AdamW; `fused` says what is done
when.

A row of the table holds the addresses of θ, the optimiser's two moments, w, the mask, the shadow weight
and the sums over merged inputs, with 0 for what is not there; then how many connections there are, how
many copies of each input, whether the gradient is bfloat16, and whether a fixed mask leaves little. What
a kind of tensor has is known when the kernel is compiled:

    W, MASK   parameters of a mask to be learnt, or a fixed mask
    SHADOW    a weight of the layer's own beside θ; NARROW if it and its gradient are bfloat16
    EVEN      a number of connections (of inputs, where they are merged) that four divides: of any four
              all are there or none, so they are moved at once
    MERGED    a layer that sees COPIES of each input, whose shadow is their sum; a piece of it is UNITS
              inputs with all their copies
    SHARES    w moves by the mean gradient of its layer, too
"""

import triton
import triton.language as tl

_THETA = tl.constexpr(0)
_FIRST = tl.constexpr(1)
_SECOND = tl.constexpr(2)
_W = tl.constexpr(3)
_MASK = tl.constexpr(4)
_SHADOW = tl.constexpr(5)
_SUMS = tl.constexpr(6)
_NUMEL = tl.constexpr(7)
_COPIES = tl.constexpr(8)
_NARROW = tl.constexpr(9)
_SPARSE = tl.constexpr(10)
_FIELDS = tl.constexpr(11)

LR, CLIP, ALPHA, DRIFT, CORRECTION, ROOT, SECOND = (tl.constexpr(place) for place in range(7))
"""Places in `numbers`, all that the network as a whole decides in a step: learning rate, factor of the
clipped gradient, step size and drift of w, and Adam's corrections: of the first moment, the root of
that of the second, and that itself."""


@triton.jit
def _inverse(x):
    root = tl.rsqrt(
        x
    )  # for numbers from 1 on as good as a division, in a third of the instructions
    return root * root


@triton.jit
def _cold_mask(w, t_l):
    v = _inverse(1.0 + tl.exp(tl.minimum(-t_l * w, 80.0)))  # float32 has no place for much more
    return tl.where(v > 1e-20, v, 0.0)


@triton.jit
def _warm_slope(w, t_s):
    e = tl.exp(-tl.abs(t_s * w))  # the slope is even in w, and this cannot overflow
    part = _inverse(1.0 + e)
    return t_s * e * part * part


@triton.jit
def _add(a, b, c, x, y, z):
    return a + x, b + y, c + z


@triton.jit
def _between(running, run, COPIES: tl.constexpr):
    """Return the sums over runs of copies from running sums."""
    until = tl.gather(running, (run + 1) * COPIES - 1, 0)
    before = tl.gather(running, tl.maximum(run * COPIES - 1, 0), 0)
    return until - tl.where(run > 0, before, 0.0)


@triton.jit
def _address(row, field: tl.constexpr, kind: tl.constexpr):
    return tl.multiple_of(tl.load(row + field).to(tl.pointer_type(kind)), 16)


@triton.jit
def _gradient_at(gradients, tensor, NARROW: tl.constexpr):
    kind: tl.constexpr = tl.bfloat16 if NARROW else tl.float32
    return tl.multiple_of(tl.load(gradients + tensor).to(tl.pointer_type(kind)), 16)


@triton.jit
def _worth_reading(row, start, here, real, EVEN: tl.constexpr):
    """Tell of which connections anything must be read.

    Where a mask leaves little, the bytes of four masks are read first, as one number: if it is 0, all
    four are off, and nothing of them ever changes. Four numbers are moved at once, and what is not
    asked for is not fetched. Elsewhere that would only be something more to wait for.
    """
    if EVEN:
        little = tl.load(row + _SPARSE) != 0
        if little:
            fours_at = _address(row, _MASK, tl.int32) + start // 4
            real = real & (tl.load(fours_at + here // 4, real, 0) != 0)
    return real


@triton.jit
def measure(
    table, gradients, chunks, sums, t_l, t_s,
    W: tl.constexpr, MASK: tl.constexpr, NARROW: tl.constexpr, MOVES: tl.constexpr,
    SHARES: tl.constexpr, EVEN: tl.constexpr, MERGED: tl.constexpr, COPIES: tl.constexpr,
    BLOCK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Write the sums of squares of the gradients of θ and of w over each chunk, and of w's own.

    All copies of an input have one gradient g, so what is summed of theirs is g or g² times a sum that
    does not depend on it: the update before has left it.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    start = tl.multiple_of(tl.load(chunks + 2 * program + 1), 16)
    row = table + tensor * _FIELDS
    number = tl.load(row + _NUMEL) // COPIES - start
    number = tl.multiple_of(number, 4) if EVEN else number
    gradient_at = _gradient_at(gradients, tensor, NARROW) + start
    still = tl.zeros([BLOCK], tl.float32)
    moving = tl.zeros([BLOCK], tl.float32)
    together = tl.zeros([BLOCK], tl.float32)
    for piece in range(PIECES):
        here = piece * BLOCK + tl.arange(0, BLOCK)
        real = here < number
        if MASK:
            real = _worth_reading(row, start, here, real, EVEN)
        slope = tl.load(gradient_at + here, real, 0.0).to(tl.float32)
        if MERGED:
            left: tl.constexpr = 3 if SHARES else 2
            sums_at = _address(row, _SUMS, tl.float32) + left * start
            still += slope * slope * tl.load(sums_at + left * here, real, 0.0)
            moving += slope * slope * tl.load(sums_at + left * here + 1, real, 0.0)
            if SHARES:
                together += slope * tl.load(sums_at + left * here + 2, real, 0.0)
        else:
            if W:
                w = tl.load(_address(row, _W, tl.float32) + start + here, real, -1.0)
                if MOVES:
                    theta = tl.load(_address(row, _THETA, tl.float32) + start + here, real, 0.0)
                    push = slope * theta * _warm_slope(w, t_s)
                    moving += push * push
                    if SHARES:
                        together += push
                slope = slope * _cold_mask(w, t_l)
            if MASK:
                mask = tl.load(_address(row, _MASK, tl.uint8) + start + here, real, 0)
                slope = slope * mask.to(tl.float32)
            still += slope * slope
    tl.store(sums + 3 * program, tl.sum(still))
    tl.store(sums + 3 * program + 1, tl.sum(moving))
    if SHARES:
        tl.store(sums + 3 * program + 2, tl.sum(together))


@triton.jit
def update(
    table, gradients, chunks, numbers, shares, active, t_l, t_s, momentum, weight_decay,
    W: tl.constexpr, MASK: tl.constexpr, SHADOW: tl.constexpr, NARROW: tl.constexpr,
    MOVES: tl.constexpr, SHARES: tl.constexpr, NESTEROV: tl.constexpr, ADAM: tl.constexpr,
    EVEN: tl.constexpr, MERGED: tl.constexpr, COPIES: tl.constexpr,
    BLOCK: tl.constexpr, UNITS: tl.constexpr, RUNS: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Move θ, and w if it moves; write the weights that the layers will use, and count what is on.

    `numbers` holds what the whole network has decided (see `decide`), `shares` how far each of its
    tensors moves w as a whole.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    start = tl.multiple_of(tl.load(chunks + 2 * program + 1), 4 if MERGED else 16)
    row = table + tensor * _FIELDS
    number = tl.load(row + _NUMEL) - start * COPIES
    number = tl.multiple_of(number, 4) if EVEN else number
    gradient_at = _gradient_at(gradients, tensor, NARROW) + start
    theta_at = _address(row, _THETA, tl.float32) + start * COPIES
    first_at = _address(row, _FIRST, tl.float32) + start * COPIES
    lr = tl.load(numbers + LR)
    clip = tl.load(numbers + CLIP)
    alpha = tl.load(numbers + ALPHA)
    drift = tl.load(numbers + DRIFT)
    place = tl.arange(0, BLOCK)
    on = tl.zeros([BLOCK], tl.int32)
    for piece in range(PIECES):
        here = piece * UNITS * COPIES + place
        real = here < number
        if MERGED:
            real = real & (place < UNITS * COPIES)
        if MASK:
            real = _worth_reading(row, start, here, real, EVEN)
        gradient = tl.load(gradient_at + piece * UNITS + place // COPIES, real, 0.0).to(tl.float32)
        # all that is read comes first: a load waits for every store before it
        theta = tl.load(theta_at + here, real, 0.0)
        first = tl.load(first_at + here, real, 0.0)
        push = gradient * clip
        if ADAM:
            second_at = _address(row, _SECOND, tl.float32) + start * COPIES
            second = tl.load(second_at + here, real, 0.0)
        if W:
            w_at = _address(row, _W, tl.float32) + start * COPIES
            w = tl.load(w_at + here, real, -1.0)
            v = _cold_mask(w, t_l)
            push = push * v
            if MOVES:
                w = w - drift * (1.0 + w) - alpha * gradient * theta * _warm_slope(w, t_s)
                if SHARES:
                    w = w - tl.load(shares + tensor)
                tl.store(w_at + here, w, real)
                v = _cold_mask(w, t_l)
            on += (w > 0).to(tl.int32)
        if MASK:
            mask_at = _address(row, _MASK, tl.uint8) + start * COPIES
            mask = tl.load(mask_at + here, real, 0).to(tl.float32)
            push = push * mask

        if ADAM:
            first = first + (1.0 - 0.9) * (push - first)
            second = 0.999 * second + (1.0 - 0.999) * push * push
            tl.store(second_at + here, second, real)
            root = tl.sqrt(second) / tl.load(numbers + ROOT) + 1e-8
            theta = (
                theta * (1.0 - lr * weight_decay)
                - lr / tl.load(numbers + CORRECTION) * first / root
            )
        else:
            push = push + weight_decay * theta
            first = momentum * first + push
            theta = theta - lr * (push + momentum * first if NESTEROV else first)
        if MASK:
            theta = theta * mask  # nothing revives what is not there
        tl.store(first_at + here, first, real)
        tl.store(theta_at + here, theta, real)

        if SHADOW:
            kind: tl.constexpr = tl.bfloat16 if NARROW else tl.float32
            shadow_at = _address(row, _SHADOW, kind) + start
            shown = theta
            if W:
                shown = theta * v
            if MERGED:
                slope = theta * _warm_slope(w, t_s)
                shown, one, other = tl.associative_scan(
                    (
                        tl.where(real, shown, 0.0),
                        tl.where(real, v * v, 0.0),
                        tl.where(real, slope * slope, 0.0),
                    ),
                    0,
                    _add,
                )
                run = tl.minimum(tl.arange(0, RUNS), UNITS - 1)
                there = (run == tl.arange(0, RUNS)) & (piece * UNITS + run < number // COPIES)
                left: tl.constexpr = 3 if SHARES else 2
                sums_at = _address(row, _SUMS, tl.float32) + left * (start + piece * UNITS + run)
                tl.store(sums_at, _between(one, run, COPIES), there)
                tl.store(sums_at + 1, _between(other, run, COPIES), there)
                if SHARES:
                    all_slopes = tl.cumsum(tl.where(real, slope, 0.0), 0)
                    tl.store(sums_at + 2, _between(all_slopes, run, COPIES), there)
                shown = _between(shown, run, COPIES)
                tl.store(shadow_at + piece * UNITS + run, shown.to(kind), there)
            else:
                tl.store(shadow_at + here, shown.to(kind), real)
    if W:
        tl.store(active + program, tl.sum(on))
