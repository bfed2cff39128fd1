"""What people use today to train with a mask, written as their papers and manuals describe it.

Each prepares a network in place; it is then trained like a dense one.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import aprune as ap
from aprune.methods.ap import _draw_w
from aprune.training.device import place

KEPT = 0.1  # fraction of the connections that the pruned rivals leave


class SoftMask(nn.Module):
    """θ∘σ(t_l·w) as anybody would write it: autograd keeps what it needs for both gradients."""

    def __init__(self, w: Tensor, t_l: float) -> None:
        super().__init__()
        self.w, self.t_l = nn.Parameter(w), t_l

    def forward(self, theta: Tensor) -> Tensor:
        return theta * torch.sigmoid(self.t_l * self.w)


def mask_by_autograd(model: nn.Module) -> None:
    method = ap.AP(sparsity=0.9)
    for name, w in _draw_w(method, ap.find_connections(model), seed=0).items():
        parametrise(model, name, SoftMask(w, method.t_l))


def prune_at_random(model: nn.Module) -> None:
    device = next(model.parameters()).device
    # pruning views each weight as a vector, which one with its channels last is not
    model.to(memory_format=torch.contiguous_format)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            prune.random_unstructured(module, "weight", amount=1 - KEPT)
    place(model, device)


class KeepTop(torch.autograd.Function):
    """1 for the largest scores of a layer by magnitude, else 0; the gradient goes straight through."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:  # noqa: ARG004
        size = scores.abs()
        kept = max(1, round(KEPT * size.numel()))
        least = size.flatten().topk(kept, sorted=False).values.min()  # quicker than a whole sort
        return (size >= least).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad


class EdgePopup(nn.Module):
    """Ramanujan et al. 2020, "What's hidden in a randomly weighted neural network?"."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * KeepTop.apply(self.scores)


def pop_edges_up(model: nn.Module) -> None:
    connections = ap.find_connections(model)
    model.requires_grad_(False)
    for name, weight in connections.items():
        bound = 1 / math.sqrt(weight[0].numel())
        scores = torch.empty_like(weight, requires_grad=False).uniform_(-bound, bound)
        parametrise(model, name, EdgePopup(scores))


def parametrise(model: nn.Module, name: str, shown: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    # unsafe leaves out a trial run
    parametrize.register_parametrization(model.get_submodule(owner), leaf, shown, unsafe=True)
