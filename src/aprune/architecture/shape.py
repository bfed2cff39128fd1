"""Names and shapes of the masks: what they may be, and whether two networks are built alike."""

import hashlib
import json
import math
from collections.abc import Mapping

from aprune.errors import ArchitectureError

# More than any weight has, and what every version of numpy can hold.
_MOST_DIMENSIONS = 32
# The index of a connection has to fit into 64 bits.
_MOST_CONNECTIONS = 2**62


def check_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an `ArchitectureError` unless these can be names and shapes of masks.

    Example:
        >>> check_shapes({"head": (10, 0)})
        Traceback (most recent call last):
        aprune.errors.ArchitectureError: the mask of 'head' is 10×0: expected sizes of 1 or more
    """
    if not shapes:
        raise ArchitectureError("there is no mask: expected at least one tensor of connections")
    for name, shape in shapes.items():
        _check_name(name)
        if not 1 <= len(shape) <= _MOST_DIMENSIONS:
            raise ArchitectureError(
                f"the mask of {quote(name)} has {len(shape)} dimensions: "
                f"expected 1 to {_MOST_DIMENSIONS}"
            )
        if min(shape) < 1:
            raise ArchitectureError(
                f"the mask of {quote(name)} is {show_shape(shape)}: expected sizes of 1 or more"
            )
        if math.prod(shape) > _MOST_CONNECTIONS:
            raise ArchitectureError(
                f"the mask of {quote(name)} is {show_shape(shape)}: expected fewer connections"
            )


def dump_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Write names and shapes as JSON: a list, because their order counts.

    Example:
        >>> dump_shapes({"head": (10, 64)})
        '[["head",[10,64]]]'
    """
    return json.dumps(
        [[name, list(shape)] for name, shape in shapes.items()], separators=(",", ":")
    )


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Hash names and shapes in their order: one value for all architectures of a parent.

    Example:
        >>> fingerprint({"head": (10, 64)})[:12]
        '1dcb04000196'
    """
    return hashlib.sha256(dump_shapes(shapes).encode()).hexdigest()


def check_same(here: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an `ArchitectureError` unless two architectures can be laid over each other.

    Example:
        >>> check_same({"a": (8, 3)}, {"a": (8, 3)})
    """
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            one, other = (show_shape(s[name]) if name in s else "absent" for s in (here, there))
            raise ArchitectureError(
                f"architectures of different parents: {quote(name)} is {one} in one "
                f"and {other} in the other; compare two of one parent"
            )


def find_misfits(
    here: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Name the tensors whose shapes differ between two networks that are built alike.

    Another task may change the first tensor (input channels), the last (classes) and the first
    matrix after convolutions (image size). Any other difference means another parent.

    Args:
        here: the shapes of the architecture.
        there: the shapes of the network that it is to be carried to.

    Raises:
        ArchitectureError: if the two are not built alike.

    Example:
        >>> find_misfits({"a": (8, 3), "b": (5, 8)}, {"a": (8, 3), "b": (2, 8)})
        ['b']
    """
    names = list(here)
    if names != list(there):
        raise _other_parent(_first_difference(names, list(there)))
    misfits = [name for name in names if tuple(here[name]) != tuple(there[name])]
    may_differ = {names[0], names[-1], _first_flattened(here)}
    for name in misfits:
        if len(here[name]) != len(there[name]) or name not in may_differ:
            raise _other_parent(
                f"{quote(name)} is {show_shape(here[name])} in it "
                f"and {show_shape(there[name])} in this network"
            )
    if len(misfits) == len(names):
        raise _other_parent("no tensor has the same shape in it and in this network")
    return misfits


def quote(text: object) -> str:
    """Quote a text that may come from a foreign file: in one line and not too long.

    Example:
        >>> quote("a" * 1000)
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'"
    """
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:49]}…{quoted[-1]}"


def show_shape(shape: tuple[int, ...]) -> str:
    """Write a shape as people do.

    Example:
        >>> show_shape((64, 3, 3, 3))
        '64×3×3×3'
    """
    return "×".join(str(size) if abs(size) < 10**20 else "…" for size in shape)


def _check_name(name: object) -> None:
    try:
        # The file keeps its own notes under this name; half a surrogate pair cannot be encoded.
        sound = isinstance(name, str) and name != "__metadata__" and bool(name.encode())
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise ArchitectureError(f"a mask is called {quote(name)}: expected a parameter's name")


def _first_flattened(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Find the first matrix that follows a kernel: its inputs are the places of an image."""
    after_kernel = False
    for name, shape in shapes.items():
        if after_kernel and len(shape) == 2:
            return name
        after_kernel |= len(shape) > 2
    return None


def _first_difference(here: list[str], there: list[str]) -> str:
    for mine, theirs in zip(here, there, strict=False):
        if mine != theirs:
            return f"it has {quote(mine)} where this network has {quote(theirs)}"
    if len(here) > len(there):
        return f"it has {quote(here[len(there)])}, which this network has not"
    return f"it has no {quote(there[len(here)])}, which this network has"


def _other_parent(difference: str) -> ArchitectureError:
    return ArchitectureError(
        f"architecture of another parent: {difference}; "
        "use the parent that it was found in, or find one in this parent"
    )
