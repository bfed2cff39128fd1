"""The state of a training: tensors, and what JSON can hold, by name."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aprune.tensor_file import octets_of

State = dict[str, Any]
"""Tensors, and what JSON can hold, by name."""


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the names, shapes and numbers of some tensors.

    Example:
        >>> digest({"weight": torch.ones(2)}) == digest({"weight": torch.zeros(2)})
        False
    """
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        whole.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        whole.update(octets_of(tensor))
    return whole.hexdigest()


def with_prefix(prefix: str, state: Mapping[str, Any]) -> State:
    """Put a word in front of all names.

    Example:
        >>> with_prefix("model", {"weight": 1})
        {'model/weight': 1}
    """
    return {f"{prefix}/{name}": value for name, value in state.items()}


def part_of(state: Mapping[str, Any], prefix: str) -> State:
    """Undo `with_prefix`.

    Example:
        >>> part_of({"model/weight": 1, "step": 2}, "model")
        {'weight': 1}
    """
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in state.items() if name.startswith(start)}


def check_alike(saved: Mapping[str, Any], mine: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless there are tensors of the same names and shapes.

    Example:
        >>> check_alike({"weight": torch.ones(2)}, {"weight": torch.zeros(3)})
        Traceback (most recent call last):
        ValueError: the state of another network
    """
    kept = {name: value.shape for name, value in saved.items() if isinstance(value, Tensor)}
    if len(kept) < len(saved) or kept != {name: value.shape for name, value in mine.items()}:
        raise ValueError("the state of another network")


def check_same(mine: State, saved: State) -> None:
    """Raise a `ValueError` unless two states are the same, to the last bit.

    Whoever goes on from a state and is then in another has been given something made up.

    Example:
        >>> check_same({"step": 5, "weight": torch.ones(2)}, {"step": 5, "weight": torch.ones(2)})
        >>> check_same({"weight": torch.ones(2)}, {"weight": torch.ones(1)})
        Traceback (most recent call last):
        ValueError: not a state that this training can be in
    """
    if mine.keys() != saved.keys() or not all(_is_same(mine[name], saved[name]) for name in mine):
        raise ValueError("not a state that this training can be in")


def _is_same(mine: Any, saved: Any) -> bool:
    if not isinstance(mine, Tensor) or not isinstance(saved, Tensor):
        return type(mine) is type(saved) and bool(mine == saved)
    if mine.dtype != saved.dtype or mine.shape != saved.shape:
        return False
    ours, theirs = (t.detach().to(mine.device).contiguous().view(-1) for t in (mine, saved))
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def copy_state(state: State) -> State:
    """Return a state that goes its own way.

    Example:
        >>> state = {"step": 5, "weight": torch.ones(2)}
        >>> copy_state(state)["weight"] is state["weight"]
        False
    """
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def is_finite(state: State) -> bool:
    """Tell whether all numbers of all tensors are finite.

    Example:
        >>> is_finite({"step": 3, "weight": torch.tensor([1.0, torch.nan])})
        False
    """
    tensors = (value for value in state.values() if isinstance(value, Tensor))
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
