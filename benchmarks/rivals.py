"""What people use today to train with a mask, written as their papers and manuals describe it.

Each prepares a network in place; it is then trained like a dense one.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import aprune as ap
from aprune.connections import parametrise
from aprune.descent import draw_w
from aprune.methods.edge_popup import Popup, draw_scores
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
    for name, w in draw_w(method, ap.find_connections(model), seed=0).items():
        parametrise(model, name, SoftMask(w, method.t_l))


def prune_at_random(model: nn.Module) -> None:
    device = next(model.parameters()).device
    # pruning views each weight as a vector, which one with its channels last is not
    model.to(memory_format=torch.contiguous_format)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            prune.random_unstructured(module, "weight", amount=1 - KEPT)
    place(model, device)


def pop_edges_up(model: nn.Module) -> None:
    """Ramanujan et al. 2020, as `aprune.EdgePopup` does it."""
    connections = ap.find_connections(model)
    model.requires_grad_(False)
    for name, weight in connections.items():
        generator = torch.Generator(weight.device).manual_seed(0)
        kept = max(1, round(KEPT * weight.numel()))
        parametrise(model, name, Popup(draw_scores(weight.detach(), generator), kept))
