"""Gradients of an untrained network, for methods that choose before any training."""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from aprune.connections import NORMS
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.methods.protocol import Problem
from aprune.training.batch import Images, draw_batches
from aprune.training.device import dtype_of

Norms = Literal["batch", "running"]
"""What norms normalise by: what a batch has, or what was seen so far, which is nothing at first."""


def check_norms(norms: str) -> None:
    """Raise a `SettingError` if norms cannot do that."""
    if norms not in get_args(Norms):
        raise SettingError(f"norms is {norms!r}: expected batch or running")


def fresh_batches(
    problem: Problem, number: int, norms: Norms = "batch"
) -> list[tuple[Tensor, Tensor]]:
    """Give the network fresh weights, and return some batches of training images as they are.

    Norms take the statistics of the batch, as in training, unless they are to be `running`. Nothing
    else is as in training: without dropout one batch has one gradient.
    """
    initialise(problem.model, scheme="he", seed=problem.seed)
    problem.model.eval()
    for module in problem.model.modules():
        if isinstance(module, NORMS):
            module.train(norms == "batch")
    for weight in problem.connections.values():
        weight.requires_grad_()  # whoever froze it wants to keep it, not to hide it
    images = Images(problem.task, augment=False, dtype=dtype_of(problem.model))
    batch, seed = problem.recipe.batch, problem.seed
    draws = draw_batches(problem.task, batch, number, seed=seed, augment=False)
    return [images.take(draw) for draw in draws]


def differentiate(
    number: Tensor, tensors: Mapping[str, Tensor], *, again: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of a number; it is zero for tensors that the number does not depend on.

    With `again` the result can be differentiated once more.
    """
    found = torch.autograd.grad(
        number, list(tensors.values()), create_graph=again, allow_unused=True
    )
    pairs = zip(tensors.items(), found, strict=True)
    return {name: torch.zeros_like(t) if g is None else g for (name, t), g in pairs}


def add_up(gradients: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of the gradients of several batches."""
    total: dict[str, Tensor] = {}
    for gradient in gradients:
        for name, slope in gradient.items():
            total[name] = total[name] + slope.detach() if name in total else slope.detach()
    return total
