"""The ways to choose connections, and the one table of them."""

from aprune.descent import Search, attach
from aprune.errors import SettingError
from aprune.methods.ap import AP
from aprune.methods.continuous import Continuous
from aprune.methods.edge_popup import EdgePopup
from aprune.methods.erk import ERK
from aprune.methods.grasp import GraSP
from aprune.methods.imp import IMP
from aprune.methods.magnitude import Magnitude
from aprune.methods.protocol import Method, Outcome, Problem
from aprune.methods.random import Random
from aprune.methods.rigl import RigL
from aprune.methods.set import SET
from aprune.methods.snip import SNIP
from aprune.methods.synflow import SynFlow

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        AP,
        Random,
        ERK,
        Magnitude,
        IMP,
        SNIP,
        GraSP,
        SynFlow,
        EdgePopup,
        Continuous,
        SET,
        RigL,
    )
}

__all__ = [
    "AP",
    "ERK",
    "IMP",
    "METHODS",
    "SET",
    "SNIP",
    "Continuous",
    "EdgePopup",
    "GraSP",
    "Magnitude",
    "Method",
    "Outcome",
    "Problem",
    "Random",
    "RigL",
    "Search",
    "SynFlow",
    "attach",
    "find_method",
]


def find_method(name: str) -> Method:
    """Return the method of that name with its default settings.

    Example:
        >>> find_method("random")
        Random(spread='layer')
    """
    if name not in METHODS:
        raise SettingError(f"unknown method {name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]()
