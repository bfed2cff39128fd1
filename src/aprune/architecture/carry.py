"""How many connections the layers of another network get.

It is the same parent, built for another task, or another parent, where layers go by kind and depth.
"""

import bisect
import math
from collections.abc import Mapping, Sequence

from aprune.errors import SettingError
from aprune.maths.select import spread_in_proportion

Shapes = Mapping[str, tuple[int, ...]]


def carry_counts(
    counts: Mapping[str, int], shapes: Shapes, there: Shapes, kept: int
) -> dict[str, int]:
    """Share `kept` connections out in a network of which some tensors have other shapes than here.

    Tensors that fit keep as many as they have. The others share what is left, in proportion to what
    they would have at their densities here, and each gets one at least. Where that cannot be, those
    that fit give up some, or take some, in proportion to what they have, or lack.

    Args:
        counts: Of the tensors here.
        shapes: Of the tensors here.
        there: The shapes of the other network, under the same names.
        kept: How many there are to be.

    Example:
        >>> here, there = {"a": (4, 2), "b": (4, 4)}, {"a": (4, 6), "b": (4, 4)}
        >>> carry_counts({"a": 4, "b": 5}, here, there, 15)
        {'a': 10, 'b': 5}
        >>> carry_counts({"a": 4, "b": 5}, here, there, 3)
        {'a': 1, 'b': 2}
    """
    sizes = {name: math.prod(shape) for name, shape in there.items()}
    misfits = [name for name in there if tuple(shapes[name]) != tuple(there[name])]
    fitting = {name: counts[name] for name in there if name not in misfits}
    room = {name: sizes[name] - 1 for name in misfits}
    if kept < len(misfits):
        raise SettingError(
            f"{kept:,} connections are too few for {len(misfits)} layers of other shapes, of which"
            " each is to have one: choose a lower sparsity"
        )
    left = kept - sum(fitting.values()) - len(misfits)
    most = sum(room.values())
    if left < 0:
        lost = spread_in_proportion(fitting, fitting, -left)
        fitting = {name: count - lost[name] for name, count in fitting.items()}
    elif left > most:
        free = {name: sizes[name] - count for name, count in fitting.items()}
        gained = spread_in_proportion(free, free, left - most)
        fitting = {name: count + gained[name] for name, count in fitting.items()}
    # in whole numbers, as shares are counted
    parts = {
        name: counts[name] * sizes[name] * 2**20 // math.prod(shapes[name]) for name in misfits
    }
    shared = spread_in_proportion(room, parts, min(max(left, 0), most))
    whole = fitting | {name: 1 + shared[name] for name in misfits}
    return {name: whole[name] for name in there}


def carry_densities(
    shapes: Shapes, densities: Mapping[str, float], there: Shapes
) -> dict[str, float]:
    """Give every layer of another parent a density, by those of the layers that are like it.

    Kernels go by kernels, matrices by matrices, and either by how far along among its kind it is;
    between two layers the density lies between theirs. A kind that is missing here gets the mean.

    Args:
        shapes: Of the layers here, in their order.
        densities: Of the layers here.
        there: The shapes of the other parent, in their order.

    Example:
        >>> here = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "head": (10, 8)}
        >>> deeper = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "c": (8, 8, 3, 3), "head": (10, 8)}
        >>> carry_densities(here, {"a": 0.5, "b": 0.1, "head": 0.9}, deeper)
        {'a': 0.5, 'b': 0.3, 'c': 0.1, 'head': 0.9}
    """
    mean = sum(densities.values()) / len(densities)
    carried = {}
    for kernels in (True, False):
        known = [densities[name] for name, shape in shapes.items() if (len(shape) > 2) is kernels]
        names = [name for name, shape in there.items() if (len(shape) > 2) is kernels]
        for number, name in enumerate(names):
            along = number / (len(names) - 1) if len(names) > 1 else 1.0
            carried[name] = _between(known or [mean], along)
    return {name: carried[name] for name in there}


def _between(values: Sequence[float], along: float) -> float:
    """Read a value off a line through `values`, spaced evenly from 0 to 1."""
    if len(values) == 1:
        return values[0]
    places = [number / (len(values) - 1) for number in range(len(values))]
    after = min(max(1, bisect.bisect_left(places, along)), len(values) - 1)
    share = (along - places[after - 1]) / (places[after] - places[after - 1])
    return round(values[after - 1] + share * (values[after] - values[after - 1]), 12)
