"""Masks as packed bits: one bit a connection, row-major, the first in the lowest bit of a byte."""

import math

import numpy as np
import torch
from torch import Tensor


def pack(mask: Tensor) -> bytes:
    r"""Pack a boolean mask of any device and memory format; unused bits at the end are 0.

    Example:
        >>> pack(torch.tensor([[True, False], [True, True]]))
        b'\r'
    """
    flat = mask.detach().cpu().contiguous().view(-1).numpy()
    return np.packbits(flat, bitorder="little").tobytes()


def unpack(packed: bytes, shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    r"""Give the mask back as a fresh boolean tensor; only its bits travel to another device.

    Example:
        >>> unpack(b"\r", (2, 2))
        tensor([[ True, False],
                [ True,  True]])
    """
    number = math.prod(shape)
    if device is not None and device.type != "cpu":
        return spread(as_tensor(packed).to(device))[:number].view(shape)
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=number, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_)).view(shape)


def as_tensor(packed: bytes) -> Tensor:
    r"""Give a tensor of the bytes.

    Example:
        >>> as_tensor(b"\r")
        tensor([13], dtype=torch.uint8)
    """
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def spread(octets: Tensor) -> Tensor:
    """Give a boolean for each bit, wherever the bytes are.

    Example:
        >>> spread(torch.tensor([13], dtype=torch.uint8)).long().tolist()
        [1, 0, 1, 1, 0, 0, 0, 0]
    """
    places = torch.arange(8, dtype=torch.uint8, device=octets.device)
    return ((octets.unsqueeze(1) >> places) & 1).view(torch.bool).view(-1)


def packed_size(shape: tuple[int, ...]) -> int:
    """Count the bytes that a mask of this shape takes.

    Example:
        >>> packed_size((3, 3))
        2
    """
    return -(-math.prod(shape) // 8)


def count(packed: bytes) -> int:
    r"""Count the connections.

    Example:
        >>> count(b"\r")
        3
    """
    return _ones(np.frombuffer(packed, dtype=np.uint8))


def count_shared(first: bytes, second: bytes) -> int:
    r"""Count the connections that are in both of two masks of one shape.

    Example:
        >>> count_shared(b"\r", b"\x07")
        2
    """
    return _ones(np.frombuffer(first, dtype=np.uint8) & np.frombuffer(second, dtype=np.uint8))


def unused_bits(packed: bytes, shape: tuple[int, ...]) -> int:
    r"""Read the bits of the last byte that belong to no connection; 0 in a sound mask.

    Example:
        >>> unused_bits(b"\x1d", (2, 2))
        1
    """
    used = math.prod(shape) % 8
    return packed[-1] >> used if used else 0


def _ones(packed: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    return int(np.bitwise_count(packed).sum(dtype=np.int64))
