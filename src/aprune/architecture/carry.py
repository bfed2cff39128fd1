"""Which layer of another parent is like which of this one, going by kind and depth."""

import bisect
from collections.abc import Mapping, Sequence

Shapes = Mapping[str, tuple[int, ...]]


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
