"""Which device to work on, and the precision and memory layout that suit it."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from aprune.errors import DeviceError, SettingError

# In what PyTorch says.
_LOST = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS")
_SINGLE = "more than 1 value per channel"
_FULL = ("out of memory", "ALLOC_FAILED")  # libraries ask for memory of their own


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise SettingError(f"unknown device {device!r}: expected auto, cpu or cuda") from error
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if chosen.type == "cuda" and (chosen.index or 0) >= gpus:
        sees = f"only {gpus} GPU(s), numbered from 0" if gpus else "no GPU"
        raise SettingError(
            f"device {chosen} was asked for, but PyTorch sees {sees}: use --device cpu"
        )
    return chosen


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """Move `model` to `device`, in the memory layout that convolutions are fast in there."""
    if device.type == "cuda":
        return model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model.to(device)


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of the weights of `model`, which its inputs are to have too.

    Example:
        >>> dtype_of(nn.Linear(2, 2).double()), dtype_of(nn.ReLU())
        (torch.float64, torch.float32)
    """
    kinds = (parameter.dtype for parameter in model.parameters())
    return next((kind for kind in kinds if kind.is_floating_point), torch.float32)


def mixed_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 for the arithmetic on a GPU, float32 elsewhere; weights are float32 everywhere."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def watched(batch: int) -> Iterator[None]:
    """Say in one line what is wrong with a GPU, or a norm, that gives up in the block.

    Args:
        batch: Images a step, to name a smaller number if there is too little memory.

    Raises:
        DeviceError: It has too little memory, or has stopped working.
        SettingError: The network normalises over a single value.

    Example:
        >>> with watched(batch=64):
        ...     raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 …")
        Traceback (most recent call last):
        aprune.errors.DeviceError: the GPU has too little memory for batches of 64: try batches of 32
    """
    try:
        yield
    except ValueError as error:
        if _SINGLE not in str(error):
            raise
        raise SettingError(
            f"the network has norms that get a single value of each channel from a batch of {batch}:"
            " take batches of 2 or more, or larger images"
        ) from error
    except RuntimeError as error:  # and an `OutOfMemoryError` is one
        reason = str(error).partition("\n")[0]
        lost = any(word in reason for word in _LOST)
        if isinstance(error, torch.OutOfMemoryError) or (lost and _is_full(reason)):
            advice = f"try batches of {batch // 2}" if batch > 1 else "use a smaller network"
            raise DeviceError(
                f"the GPU has too little memory for batches of {batch}: {advice}", batch
            ) from error
        if not lost:
            raise
        raise DeviceError(
            f"the GPU has stopped working ({reason}): what was written before is kept, and the same"
            " command goes on from there once it works again"
        ) from error


def _is_full(reason: str) -> bool:
    return any(word in reason for word in _FULL)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: on small tensors, threads wait for each other more than they work.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
