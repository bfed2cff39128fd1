"""Parents on the device that they are trained on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aprune.errors import ParentError
from aprune.parents import build_parent, parent_for, parent_names
from aprune.tasks import Task
from aprune.training.device import place
from aprune.training.recipe import Recipe, describe_settings
from aprune.training.state import digest

Parent = str | nn.Module | Callable[[Any], nn.Module]
"""A name, a network, or a function from a task to a network."""


def network_for(
    parent: Parent, task: Task, device: torch.device, *, seed: int, weights: bool
) -> nn.Module:
    """Return a network for `task` on `device` that nobody else holds.

    Args:
        parent: What a user calls a parent.
        task: What the network has to read and to tell apart.
        device: Where it is to be.
        seed: Of the parent's own initial weights.
        weights: Whether those are needed. If not, the numbers in the network are arbitrary and it must
            be initialised: drawing 140 M weights to throw them away takes longer than many a training
            epoch.
    """
    if isinstance(parent, str) and parent in parent_names() and not weights:
        with torch.device("meta"):
            network = build_parent(parent, task)
        return place(network.to_empty(device=device), device)
    network = parent_for(parent, task, seed=seed)
    _check_precision(network)
    return place(network, device)


def _check_precision(network: nn.Module) -> None:
    """Refuse a network in half precision: steps of training are lost in its rounding."""
    types = {weight.dtype for weight in network.parameters() if weight.is_floating_point()}
    if types and not types & {torch.float32, torch.float64}:
        raise ParentError(
            f"the network {type(network).__name__} has weights of {types.pop()}: expected"
            " torch.float32, so call .float() first; a GPU computes in bfloat16 by itself"
        )


def describe_training(
    parent: Parent, model: nn.Module, task: Task, recipe: Recipe
) -> dict[str, Any]:
    """Return what determines a training, as JSON can hold it: a run is known again by it.

    Args:
        parent: What a user calls a parent.
        model: The network as it was built from it; its weights count if it is not one of aprune's own.
        task: What it is trained on.
        recipe: How.
    """
    own = isinstance(parent, str) and parent in parent_names()
    images = {"images": task.train_images, "labels": task.train_labels}
    return {
        "parent": parent if isinstance(parent, str) else type(model).__qualname__,
        "start": None if own else digest(model.state_dict()),
        "device": next(model.parameters()).device.type,
        "task": [dict(task.provenance), str(task.augment), digest(images)],
        "recipe": describe_settings(recipe),
    }


def outline_for(parent: Parent, task: Task) -> nn.Module:
    """Return a network for a look at its layers: of aprune's own parents, one without storage."""
    if isinstance(parent, str) and parent in parent_names():
        with torch.device("meta"):
            return build_parent(parent, task)
    return parent_for(parent, task)
