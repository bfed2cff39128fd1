"""Which device to work on, and the precision and memory layout that suit it."""

import contextlib

import torch
from torch import nn

from aprune.errors import SettingError


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise SettingError(f"unknown device {device!r}: expected auto, cpu or cuda") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SettingError("device cuda was asked for, but PyTorch sees no GPU: use --device cpu")
    return chosen


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """Move `model` to `device`, in the memory layout that convolutions are fast in there."""
    if device.type == "cuda":
        return model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model.to(device)


def mixed_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 for the arithmetic on a GPU, float32 elsewhere; weights are float32 everywhere."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()
