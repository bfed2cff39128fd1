"""How long a step takes, how much memory it holds, and what the card could do at best."""

import contextlib
import gc
import itertools
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

Row = dict[str, Any]
Step = Callable[[], object]

WARM_UP = 8  # steps; the engine takes three by itself before it captures one


def attempt(row: Row, work: Callable[..., Row], *given: Any) -> None:
    """Fill in a row, or why it could not be; leave the device empty for the next."""
    try:
        row |= work(*given)
    except Exception as error:
        row["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    gc.collect()
    if torch.cuda.is_available():
        # after a capture that failed its stream is still the current one, and memory may be held
        torch.cuda.set_stream(torch.cuda.default_stream())
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def timed(step: Step, repeats: int, device: torch.device) -> Row:
    """Return median and quartiles of the time of a step, and the most memory that it holds."""
    warm_up(step, device)
    times = times_on_gpu(step, repeats) if device.type == "cuda" else times_on_cpu(step, repeats)
    low, middle, high = (rounded(value) for value in np.percentile(times, (25, 50, 75)))
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {
        "ms": middle,
        "ms_low": low,
        "ms_high": high,
        "peak_gib": None if memory is None else rounded(memory),
    }


def warm_up(step: Step, device: torch.device) -> None:
    """Compile, capture, and keep on until the clock of a card that stood idle has risen."""
    if device.type != "cuda":
        step()
        return
    begin = time.perf_counter()
    for number in itertools.count():
        if number >= WARM_UP and time.perf_counter() - begin > 0.3:
            return
        if number == 2:  # compilers try things out before, captures come after
            torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()


def times_on_gpu(step: Step, repeats: int) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]


def times_on_cpu(step: Step, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


@cache
def matmul_peak(device: torch.device, side: int = 8_192) -> float | None:
    """Return the teraflops of a large product of matrices in bfloat16."""
    if device.type != "cuda":
        return None
    left, right, out = torch.randn(3, side, side, device=device, dtype=torch.bfloat16)
    ms = timed(lambda: torch.mm(left, right, out=out), 30, device)["ms"]
    return rounded(2 * side**3 / ms / 1e9)


@cache
def copy_bandwidth(device: torch.device, size: int = 2**32) -> float | None:
    """Return the terabytes a second that a large copy reads and writes."""
    if device.type != "cuda":
        return None
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    return rounded(2 * size / timed(lambda: target.copy_(source), 30, device)["ms"] / 1e9)


def rounded(value: float) -> float:
    return float(f"{value:.5g}")
