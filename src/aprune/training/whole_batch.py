"""Norms and dropout of a network of which several processes see parts of a batch: as if each saw all."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from aprune.training.ranks import Team


@contextlib.contextmanager
def whole_batches(model: nn.Module, team: Team, batch: int) -> Iterator[None]:
    """Let batch norms and dropout of `model` see batches of which this process has a share.

    Only PyTorch's own layers are known; others do what they do, with the share.

    Args:
        model: The network; it is as before when the block ends.
        team: Who the batch is shared with.
        batch: Its size, over all.
    """
    patched: list[nn.Module] = []
    try:
        for module in () if team.alone else model.modules():
            if isinstance(module, _BatchNorm):
                forward = functools.partial(_normalise, module, team)
            elif isinstance(module, _DropoutNd) and type(module) in _KEPT:
                forward = functools.partial(_drop, module, team, batch)
            else:
                continue
            module.forward = forward  # type: ignore[method-assign]
            patched.append(module)
        yield
    finally:
        for module in patched:
            del module.forward


class _Sum(torch.autograd.Function):
    """The sum over all processes, of which each gets the gradient of all."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, team: Team) -> Tensor:
        ctx.team = team
        total = value.detach().clone()
        team.add([total])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        ctx.team.add([total])
        return total, None


def _normalise(norm: _BatchNorm, team: Team, x: Tensor) -> Tensor:
    """Do what a batch norm does, with the moments of the whole batch."""
    norm._check_input_dim(x)
    if not norm.training and norm.running_mean is not None:
        return type(norm).forward(norm, x)
    wide = x.float()
    others = [0, *range(2, x.dim())]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    count = torch.tensor(float(x.numel() // x.shape[1]), device=x.device)
    team.add([count])
    mean = _sum(wide.sum(others), team) / count
    centred = wide - mean.view(shape)
    variance = _sum(centred.square().sum(others), team) / count
    _remember(norm, mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
    y = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape)
    if norm.bias is not None:
        y = y + norm.bias.view(shape)
    return y.to(x.dtype)


def _remember(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if norm.running_mean is None or norm.running_var is None:
        return
    share = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share or 0.0)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share or 0.0)


# Dimensions that have a number each; a channel of the latter is dropped as a whole.
_KEPT = {nn.Dropout: None, nn.Dropout1d: 2, nn.Dropout2d: 2, nn.Dropout3d: 2}


def _drop(dropout: _DropoutNd, team: Team, batch: int, x: Tensor) -> Tensor:
    """Do what a dropout does, with this process's part of what it would draw for the whole batch."""
    if not dropout.training or dropout.p == 0:
        return x
    mine = team.share(batch)
    rows = len(x) // (mine.stop - mine.start)  # a network may make several of one image
    kept = _KEPT[type(dropout)]
    inner = x.shape[1:] if kept is None else (*x.shape[1:kept], *[1] * (x.dim() - kept))
    noise = x.new_empty((rows * batch, *inner)).bernoulli_(1 - dropout.p)
    if dropout.p < 1:
        noise = noise.div_(1 - dropout.p)
    return x * noise[rows * mine.start : rows * mine.stop]


def _sum(value: Tensor, team: Team) -> Tensor:
    total: Tensor = _Sum.apply(value, team)  # type: ignore[no-untyped-call]
    return total
