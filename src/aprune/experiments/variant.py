"""What can be retrained beside an architecture as it was found, with fresh weights that fit it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aprune.methods import Method


@dataclass(frozen=True)
class Variant:
    """One way to do it differently.

    Attributes:
        summary: What is different, in a few words.
        changes: Fields of a `TransferRun`.
    """

    summary: str
    changes: Mapping[str, Any] = field(default_factory=dict)


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "reshuffled": Variant("connections in other places of a layer", {"reshuffled": True}),
        "bare": Variant("one weight a layer and its negative", {"bare": True}),
        "normal": Variant("fresh weights from a narrow normal", {"init": "normal"}),
        "he": Variant("fresh weights as for the dense parent", {"init": "he"}),
        "he_density": Variant("fresh weights by a layer's density", {"init": "he_density"}),
        "he_fan_in": Variant("fresh weights by the inputs of each unit", {"init": "he_fan_in"}),
        "rewound": Variant("weights that the search began with", {"start": "rewound"}),
        "fine_tuned": Variant("weights that the search ended with", {"start": "fine_tuned"}),
    }
)
"""From the name of a variant to what it is."""


def is_possible(variant: str, method: Method | None) -> bool:
    """Tell whether architectures of a method can be varied so; None is the dense parent.

    Example:
        >>> from aprune import Random
        >>> is_possible("bare", Random()), is_possible("rewound", Random())
        (True, False)
    """
    if method is None:
        return variant not in ("reshuffled", "rewound")
    return {"rewound": method.rewinds, "fine_tuned": method.trains}.get(variant, True)
