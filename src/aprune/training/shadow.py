"""Tensors of a network, and the shadows of them that its layers hold while a fused update moves them.

A shadow is the masked weight in the precision that the layer computes with. Where a layer sees several
copies of an input, it is the sum over the copies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from aprune.maths.relaxation import cold_mask, warm_slope
from aprune.training.recipe import Recipe

_NARROW = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers that autocast runs in bfloat16
_ROWS = 512  # units of a layer that are shown at a time
_LITTLE = 12  # if less than one connection in so many is on, kernels pass over those that are off


@dataclass
class Shadowed:
    """One tensor of the network, and all that goes with it."""

    module: nn.Module
    name: str
    theta: nn.Parameter
    leaf: nn.Parameter  # what the layer uses: the shadow, or θ itself
    w: Tensor | None
    mask: Tensor | None
    first: Tensor
    second: Tensor | None
    sums: Tensor | None  # where inputs are merged: what `measure` must know of all copies of each
    copies: int
    shares: bool  # whether w moves by the mean gradient of the layer, too

    @classmethod
    def of(
        cls,
        module: nn.Module,
        name: str,
        recipe: Recipe,
        *,
        w: Tensor | None,
        mask: Tensor | None,
        copies: int,
        narrow: bool,
        shares: bool = False,
    ) -> Self:
        """Make the shadow, if the layer needs one, and the optimiser's moments."""
        leaf = theta = module.get_parameter(name)
        narrow = narrow and theta.dim() >= 2 and type(module) in _NARROW
        if w is not None or narrow:
            like = theta if copies == 1 else theta[:, : theta.shape[1] // copies].contiguous()
            kind = torch.bfloat16 if narrow else theta.dtype
            leaf = nn.Parameter(torch.empty_like(like, dtype=kind))
        values = theta.detach()
        return cls(
            module,
            name,
            theta,
            leaf,
            w,
            None if mask is None else torch.empty_like(values, dtype=torch.uint8).copy_(mask),
            torch.zeros_like(values),
            torch.zeros_like(values) if recipe.optimiser == "adam" else None,
            leaf.new_zeros((leaf.numel(), 2 + shares), dtype=torch.float32) if copies > 1 else None,
            copies,
            shares and w is not None,
        )

    @property
    def kind(self) -> dict[str, int | bool]:
        """Return what the kernels must know when they are compiled."""
        return {
            "W": self.w is not None,
            "MASK": self.mask is not None,
            "NARROW": self.leaf.dtype == torch.bfloat16,
            "MERGED": self.copies > 1,
            "COPIES": self.copies,
            "SHARES": self.shares,
        }

    def show(self, t_l: float, t_s: float) -> None:
        """Write the shadow from θ and the mask."""
        if self.mask is not None:
            self.theta.mul_(self.mask)
        if self.leaf is self.theta:
            return
        if self.w is None:
            self.leaf.copy_(self.theta)
            return
        # a few rows at a time: for a whole layer this would be most of the memory that a search needs
        rows = len(self.theta)
        sums = None if self.sums is None else self.sums.view(rows, -1, 2 + self.shares)
        for first in range(0, rows, _ROWS):
            part = slice(first, first + _ROWS)
            theta, mask = self.theta[part], cold_mask(self.w[part], t_l)
            shown = theta * mask
            if sums is not None:
                shown = shown.view(len(shown), -1, self.copies).sum(-1)
                slope = theta * warm_slope(self.w[part], t_s)
                for place, terms in enumerate((mask.square(), slope.square(), slope)):
                    if place < sums.shape[-1]:
                        sums[part, :, place] = terms.view(len(terms), -1, self.copies).sum(-1)
            self.leaf[part] = shown

    def row(self) -> list[int]:
        """Return what the kernels must know of it, in the order of their table."""
        shadow = None if self.leaf is self.theta else self.leaf
        tensors = (self.theta, self.first, self.second, self.w, self.mask, shadow, self.sums)
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        narrow = self.leaf.dtype == torch.bfloat16
        return [*addresses, self.theta.numel(), self.copies, int(narrow), int(self.is_sparse())]

    def is_sparse(self) -> Tensor | bool:
        """Tell whether a fixed mask leaves little; where the mask is, so that nobody waits."""
        return self.mask is not None and self.mask.sum() * _LITTLE < self.mask.numel()


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name of each parameter that is trained, its layer, and its name there."""
    for prefix, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                yield f"{prefix}.{leaf}" if prefix else leaf, module, leaf


def computes_narrowly(model: nn.Module) -> bool:
    """Tell whether all layers of `model` are sure to run in bfloat16 where autocast makes them.

    Code of the user's own may switch that off for a part, and would then find a weight of another
    type than its inputs.
    """
    known = ("torch.nn.", "aprune.")
    return all(type(module).__module__.startswith(known) for module in model.modules())
