"""Tensors as a safetensors file: the same tensors make the same bytes.

The library's own writer takes any order in its header, and needs all tensors in memory at once.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aprune.errors import FileError

_KINDS = {
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def pieces_of(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    r"""Give the bytes of a file piece by piece: its head, then each tensor.

    Wide numbers come first, so that all lie at multiples of their width, as some readers need it;
    otherwise the order is that of `tensors`.

    Args:
        metadata: Texts for the header, in the order in which they are to stand there.
        tensors: On any device; one at a time is copied to the CPU.

    Raises:
        FileError: A tensor is of a type that such a file cannot hold.

    Example:
        >>> head, mask = pieces_of({"format": "mine"}, {"mask": torch.tensor([1, 0, 1]).bool()})
        >>> head[8:].rstrip()
        b'{"__metadata__":{"format":"mine"},"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}'
        >>> mask.tobytes()
        b'\x01\x00\x01'
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        kind = _KINDS.get(tensor.dtype)
        if kind is None:
            raise FileError(
                f"a file cannot hold {name!r}, a tensor of {tensor.dtype}: convert it first"
            )
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        yield octets_of(tensor)


def octets_of(tensor: Tensor) -> Any:
    r"""Return the bytes of a tensor in row-major order, without a copy if it lies so on the CPU.

    Example:
        >>> octets_of(torch.tensor([1, 256], dtype=torch.int16)).tobytes()
        b'\x01\x00\x00\x01'
    """
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
