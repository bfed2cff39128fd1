"""Gradients of an untrained network, for methods that choose before any training."""

import torch
from torch import Tensor, nn

from aprune.initialise import initialise
from aprune.methods.protocol import Problem
from aprune.training.batch import Images, draw_batches


def fresh_batches(problem: Problem, number: int) -> list[tuple[Tensor, Tensor]]:
    """Give the network fresh weights, and return some batches of training images as they are.

    It is left in training mode, where norms take the statistics of the batch; but without dropout, so
    that one batch has one gradient.
    """
    initialise(problem.model, scheme="he", seed=problem.seed)
    problem.model.train()
    for module in problem.model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    images = Images(problem.task, augment=False)
    batch, seed = problem.recipe.batch, problem.seed
    draws = draw_batches(problem.task, batch, number, seed=seed, augment=False)
    return [images.take(draw) for draw in draws]


def differentiate(
    number: Tensor, tensors: dict[str, nn.Parameter], *, again: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of a number; where it does not depend on a tensor that is zero.

    With `again` the result can be differentiated once more.
    """
    found = torch.autograd.grad(
        number, list(tensors.values()), create_graph=again, allow_unused=True
    )
    pairs = zip(tensors.items(), found, strict=True)
    return {name: torch.zeros_like(t) if g is None else g for (name, t), g in pairs}
