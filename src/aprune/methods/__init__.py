"""The ways to choose connections, and the one table of them."""

from aprune.errors import SettingError
from aprune.methods.ap import AP, attach
from aprune.methods.attached import Search
from aprune.methods.imp import IMP
from aprune.methods.protocol import Method, Outcome
from aprune.methods.random import Random

METHODS: dict[str, type[AP] | type[IMP] | type[Random]] = {
    method.name: method for method in (AP, IMP, Random)
}

__all__ = ["AP", "IMP", "METHODS", "Method", "Outcome", "Random", "Search", "attach", "find_method"]


def find_method(name: str) -> Method:
    """Return the method of that name with its default settings.

    Example:
        >>> find_method("random")
        Random(spread='layer')
    """
    if name not in METHODS:
        raise SettingError(f"unknown method {name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]()
