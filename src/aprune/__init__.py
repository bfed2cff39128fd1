"""aprune finds small architectures inside large networks and carries them to new tasks.

Example:
    >>> import aprune as ap
    >>> big = ap.load_task("digits", classes=[0, 1, 2, 3, 4])
    >>> quick = ap.Recipe(steps=100, lr=0.03)
    >>> arch = ap.find("mlp", big, ap.AP(), sparsity=0.9, seed=0, recipe=quick)
    >>> small = ap.load_task("digits", classes=[5, 6, 7, 8, 9], images=50, seed=0)
    >>> result = ap.transfer(arch, "mlp", small, seed=0, recipe=quick)
    >>> result.accuracy > 0.5
    True
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aprune.architecture import Architecture
    from aprune.bulk import transfer_many
    from aprune.connections import find_connections
    from aprune.errors import ApruneError
    from aprune.finding import Found, find, search
    from aprune.methods import (
        AP,
        ERK,
        IMP,
        SET,
        SNIP,
        Continuous,
        EdgePopup,
        GraSP,
        Magnitude,
        Random,
        RigL,
        SynFlow,
        attach,
    )
    from aprune.parents import build_parent, parent_names
    from aprune.retraining import Result, Retraining, transfer
    from aprune.tasks import Task, load_task
    from aprune.trained import Trained, load_model
    from aprune.training import Recipe
    from aprune.training.ranks import joined

try:
    __version__ = version("aprune")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0"

__all__ = [
    "AP",
    "ERK",
    "IMP",
    "SET",
    "SNIP",
    "ApruneError",
    "Architecture",
    "Continuous",
    "EdgePopup",
    "Found",
    "GraSP",
    "Magnitude",
    "Random",
    "Recipe",
    "Result",
    "Retraining",
    "RigL",
    "Scheme",
    "Solution",
    "SynFlow",
    "Task",
    "Trained",
    "attach",
    "build_parent",
    "find",
    "find_connections",
    "joined",
    "load_model",
    "load_task",
    "parent_names",
    "search",
    "solve",
    "transfer",
    "transfer_many",
]

_HOMES = {
    "architecture": ("Architecture",),
    "bulk": ("transfer_many",),
    "connections": ("find_connections",),
    "errors": ("ApruneError",),
    "finding": ("Found", "find", "search"),
    "methods": (
        *("AP", "ERK", "IMP", "SET", "SNIP", "Continuous", "EdgePopup", "GraSP"),
        *("Magnitude", "Random", "RigL", "SynFlow", "attach"),
    ),
    "parents": ("build_parent", "parent_names"),
    "retraining": ("Result", "Retraining", "transfer"),
    "solver": ("Scheme", "Solution", "solve"),
    "tasks": ("Task", "load_task"),
    "trained": ("Trained", "load_model"),
    "training": ("Recipe",),
    "training.ranks": ("joined",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `aprune --help` need not load PyTorch."""
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"aprune.{home}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
