"""One pass over all weights of a network: what a search or a masked training does to them, in Triton.

A network has dozens of tensors, and an update of each is a launch of its own. Here one launch goes over
all of them: they are cut into chunks, and each chunk finds its tensor in a table of addresses. The
arithmetic is that of `maths.relaxation`, `methods.descent` and PyTorch's SGD and AdamW; `fused` says
what is done when.

A row of the table holds the addresses of θ, the optimiser's two moments, w, the mask and the shadow
weight, with 0 for what is not there; then how many connections there are, whether gradient and shadow
are bfloat16, and how many copies of an input the layer sees.
"""

import triton
import triton.language as tl

_THETA = tl.constexpr(0)
_FIRST = tl.constexpr(1)
_SECOND = tl.constexpr(2)
_W = tl.constexpr(3)
_MASK = tl.constexpr(4)
_SHADOW = tl.constexpr(5)
_NUMEL = tl.constexpr(6)
_NARROW = tl.constexpr(7)
_COPIES = tl.constexpr(8)
_FIELDS = tl.constexpr(9)


@triton.jit
def _sigmoid(x):
    x = tl.minimum(tl.maximum(x, -80.0), 80.0)  # beyond, float32 has nothing more to tell
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _cold_mask(w, t_l):
    v = _sigmoid(t_l * w)
    return tl.where(v > 1e-20, v, 0.0)


@triton.jit
def _warm_slope(w, t_s):
    x = t_s * w
    return t_s * _sigmoid(x) * _sigmoid(-x)


@triton.jit
def _address(row, field: tl.constexpr, kind: tl.constexpr):
    return tl.multiple_of(tl.load(row + field).to(tl.pointer_type(kind)), 16)


@triton.jit
def _places(
    row, chunk,
    EVEN: tl.constexpr, MERGED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return where a chunk lies in the tensor and in its gradient, and which places are real."""
    total = tl.load(row + _NUMEL)
    if MERGED:
        copies = tl.load(row + _COPIES)
        unit = chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
        copy = tl.arange(0, WIDTH)[None, :]
        here = unit * copies + copy
        there = unit + tl.zeros([BLOCK, WIDTH], tl.int64)
        real = (copy < copies) & (here < total)
    else:
        here = chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = here
        # where all are, a load without conditions moves four numbers at a time
        real = tl.full([BLOCK], 1, tl.int1) if EVEN else here < total
    return here, there, real


@triton.jit
def _load_gradient(row, gradient, there, real):
    if tl.load(row + _NARROW) == 1:
        narrow = tl.multiple_of(gradient.to(tl.pointer_type(tl.bfloat16)), 16)
        values = tl.load(narrow + there, real, 0.0).to(tl.float32)
    else:
        wide = tl.multiple_of(gradient.to(tl.pointer_type(tl.float32)), 16)
        values = tl.load(wide + there, real, 0.0)
    return values


@triton.jit
def measure(
    table, gradients, chunks, squares, t_l, t_s,
    MOVES: tl.constexpr,
    EVEN: tl.constexpr, MERGED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the sums of squares of the gradients of θ and of w over each chunk."""
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    row = table + tensor * _FIELDS
    here, there, real = _places(row, tl.load(chunks + 2 * program + 1), EVEN, MERGED, BLOCK, WIDTH)
    slope = _load_gradient(row, tl.load(gradients + tensor), there, real)
    moving = slope * 0.0
    if tl.load(row + _W) != 0:
        w = tl.load(_address(row, _W, tl.float32) + here, real, -1.0)
        if MOVES:
            theta = tl.load(_address(row, _THETA, tl.float32) + here, real, 0.0)
            moving = slope * theta * _warm_slope(w, t_s)
        slope = slope * _cold_mask(w, t_l)
    elif tl.load(row + _MASK) != 0:
        slope = slope * tl.load(_address(row, _MASK, tl.uint8) + here, real, 0).to(tl.float32)
    slope = tl.where(real, slope, 0.0)
    moving = tl.where(real, moving, 0.0)
    tl.store(squares + 2 * program, tl.sum(slope * slope))
    tl.store(squares + 2 * program + 1, tl.sum(moving * moving))


@triton.jit
def look_up(table, gradients, places, w_out, slope_out, total, t_s, BLOCK: tl.constexpr):
    """Fetch w and its gradient at a sample of places, given as tensor, offset and gradient's offset."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = number < total
    tensor = tl.load(places + 3 * number, real, 0)
    here = tl.load(places + 3 * number + 1, real, 0)
    there = tl.load(places + 3 * number + 2, real, 0)
    row = table + tensor * _FIELDS
    w = tl.load(tl.load(row + _W).to(tl.pointer_type(tl.float32)) + here, real, 0.0)
    theta = tl.load(tl.load(row + _THETA).to(tl.pointer_type(tl.float32)) + here, real, 0.0)
    half = tl.load(row + _NARROW) == 1
    gradient = tl.load(gradients + tensor)
    narrow = tl.load(gradient.to(tl.pointer_type(tl.bfloat16)) + there, real & half, 0.0)
    wide = tl.load(gradient.to(tl.pointer_type(tl.float32)) + there, real & (half == 0), 0.0)
    slope = (narrow.to(tl.float32) + wide) * theta * _warm_slope(w, t_s)
    tl.store(w_out + number, w, real)
    tl.store(slope_out + number, slope, real)


@triton.jit
def update(
    table, gradients, chunks, numbers, t_l, t_s, momentum, weight_decay,
    MOVES: tl.constexpr, NESTEROV: tl.constexpr, ADAM: tl.constexpr,
    EVEN: tl.constexpr, MERGED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Move θ, and w if it moves; write the weights that the layers will use.

    `numbers` holds what the whole network has decided: learning rate, factor of the clipped gradient,
    step size and drift of w, and Adam's two corrections.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    row = table + tensor * _FIELDS
    here, there, real = _places(row, tl.load(chunks + 2 * program + 1), EVEN, MERGED, BLOCK, WIDTH)
    gradient = _load_gradient(row, tl.load(gradients + tensor), there, real)
    # all that is read comes first: a load waits for every store before it
    theta_at = _address(row, _THETA, tl.float32) + here
    theta = tl.load(theta_at, real, 0.0)
    first_at = _address(row, _FIRST, tl.float32) + here
    first = tl.load(first_at, real, 0.0)
    if ADAM:
        second_at = _address(row, _SECOND, tl.float32) + here
        second = tl.load(second_at, real, 0.0)
    mask = gradient * 0.0 + 1.0
    after = mask
    if tl.load(row + _W) != 0:
        w_at = _address(row, _W, tl.float32) + here
        w = tl.load(w_at, real, -1.0)
        mask = _cold_mask(w, t_l)
        after = mask
        if MOVES:
            slope = gradient * theta * _warm_slope(w, t_s)
            w = w - tl.load(numbers + 3) * (1.0 + w) - tl.load(numbers + 2) * slope
            tl.store(w_at, w, real)
            after = _cold_mask(w, t_l)
    elif tl.load(row + _MASK) != 0:
        mask = tl.load(_address(row, _MASK, tl.uint8) + here, real, 0).to(tl.float32)
        after = mask

    lr = tl.load(numbers)
    push = gradient * mask * tl.load(numbers + 1)
    if ADAM:
        first = first + (1.0 - 0.9) * (push - first)
        second = 0.999 * second + (1.0 - 0.999) * push * push
        tl.store(second_at, second, real)
        root = tl.sqrt(second) / tl.load(numbers + 5) + 1e-8
        theta = theta * (1.0 - lr * weight_decay) - lr / tl.load(numbers + 4) * first / root
    else:
        push = push + weight_decay * theta
        first = momentum * first + push
        theta = theta - lr * (push + momentum * first if NESTEROV else first)
    if tl.load(row + _MASK) != 0:
        theta = theta * mask  # nothing revives what is not there
    tl.store(first_at, first, real)
    tl.store(theta_at, theta, real)

    if tl.load(row + _SHADOW) != 0:
        shown = tl.where(real, theta * after, 0.0)
        if MERGED:
            unit = tl.load(chunks + 2 * program + 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            kept = unit * tl.load(row + _COPIES) < tl.load(row + _NUMEL)
            _store_shadow(row, unit, tl.sum(shown, 1), kept)
        else:
            _store_shadow(row, here, shown, real)


@triton.jit
def _store_shadow(row, place, values, real):
    if tl.load(row + _NARROW) == 1:
        tl.store(_address(row, _SHADOW, tl.bfloat16) + place, values.to(tl.bfloat16), real)
    else:
        tl.store(_address(row, _SHADOW, tl.float32) + place, values, real)
