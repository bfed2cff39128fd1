"""Schedules: plain functions from the position in a run to a value.

A schedule takes the step (0, 1, …) and the number of steps, and returns a factor that multiplies a
base value. Any function of that shape may be used where a schedule is asked for.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from aprune.errors import SettingError

Schedule = Callable[[int, int], float]
ScheduleName = Literal["constant", "hold", "inverse_sqrt", "one_cycle", "warm_up"]
"""The names that `find_schedule` knows."""


def constant(step: int, steps: int) -> float:  # noqa: ARG001
    """Return 1 at every step.

    Example:
        >>> constant(7, 10)
        1.0
    """
    return 1.0


def inverse_sqrt(step: int, steps: int) -> float:  # noqa: ARG001
    """Return 1/√i with i = step + 1, the step sizes c/√i of Theorem 1.

    Example:
        >>> inverse_sqrt(3, 10)
        0.5
    """
    return 1.0 / math.sqrt(step + 1)


def one_cycle(step: int, steps: int, *, warmup: float = 0.2) -> float:
    """Rise linearly to 1 over the first `warmup` of the steps, then fall to 0 along a cosine.

    Example:
        >>> [round(one_cycle(step, 10), 3) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def hold(step: int, steps: int, *, ends: float = 0.2) -> float:
    """Rise linearly to 1 over the first `ends` of the steps, stay, fall linearly over the last.

    Example:
        >>> [round(hold(step, 10), 3) for step in (0, 1, 5, 8, 9)]
        [0.5, 1.0, 1.0, 1.0, 0.5]
    """
    length = max(1.0, ends * steps)
    return min(1.0, (step + 1) / length, (steps - step) / length)


def warm_up(step: int, steps: int, *, length: float = 0.4) -> float:
    """Rise linearly to 1 over the first `length` of the steps, and stay there.

    Example:
        >>> [warm_up(step, 10) for step in (0, 1, 3, 9)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / max(1.0, length * steps))


def ramp(step: int, steps: int, *, start: float, end: float, power: float = 3.0) -> float:
    """Rise from 0 at `start`·steps to 1 at `end`·steps, quickly at first: 1 − (1 − x)^power.

    The last step before `end` reaches 1 exactly.

    Example:
        >>> [ramp(step, 10, start=0.5, end=0.9) for step in (0, 4, 6, 8, 9)]
        [0.0, 0.0, 0.875, 1.0, 1.0]
    """
    first, last = round(start * steps), max(round(start * steps) + 1, round(end * steps))
    position = min(1.0, max(0.0, (step + 1 - first) / (last - first)))
    return float(1.0 - (1.0 - position) ** power)


def sparsities_of_rounds(final: float, rounds: int) -> list[float]:
    """Return the sparsity after each round if each keeps the same fraction; the last to the digit.

    Example:
        >>> [round(sparsity, 6) for sparsity in sparsities_of_rounds(0.99, 2)]
        [0.9, 0.99]
    """
    return [1.0 - (1.0 - final) ** (done / rounds) for done in range(1, rounds)] + [final]


def reached(wanted: Sequence[float], sparsity: float) -> list[float]:
    """Return those of some sparsities that a round has reached, but for rounding.

    Example:
        >>> halfway = sparsities_of_rounds(0.99, 2)[0]
        >>> halfway < 0.9, reached([0.5, 0.9, 0.95], halfway)
        (True, [0.5, 0.9])
    """
    return [one for one in wanted if one <= sparsity + 1e-9]


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "hold": hold,
    "inverse_sqrt": inverse_sqrt,
    "one_cycle": one_cycle,
    "warm_up": warm_up,
}


def name_schedule(schedule: object) -> Any:
    """Return what a schedule is known by, as JSON can hold it: the same on every day and machine.

    That is the name of a function; of a `functools.partial` also what it was given; of anything else
    that can be called, what it prints as.

    Raises:
        SettingError: It prints as its place in memory, so that two could not be told apart.

    Example:
        >>> name_schedule(one_cycle)
        'one_cycle'
    """
    if isinstance(schedule, partial):
        given = {name: name_schedule(value) for name, value in schedule.keywords.items()}
        arguments = [name_schedule(value) for value in schedule.args]
        return {"function": name_schedule(schedule.func), "arguments": arguments, "keywords": given}
    if schedule is None or isinstance(schedule, str | int | float):
        return schedule
    name = getattr(schedule, "__qualname__", None) or repr(schedule)
    if " at 0x" in name:
        raise SettingError(
            f"a schedule has {name}, which is another one each time: give a function, a"
            " functools.partial of one, or an object whose __repr__ says what it does"
        )
    return name


def find_schedule(schedule: str | Schedule) -> Schedule:
    """Return the schedule of that name; a function comes back as it is.

    Example:
        >>> find_schedule("inverse_sqrt")(0, 10)
        1.0
    """
    if callable(schedule):
        name_schedule(schedule)  # fails now rather than when everything is done
        return schedule
    if schedule not in SCHEDULES:
        names = ", ".join(SCHEDULES)
        raise SettingError(
            f"unknown schedule {schedule!r}: expected one of {names}, or a function of (step, steps)"
        )
    return SCHEDULES[schedule]
