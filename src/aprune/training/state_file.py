"""The state of a training as a safetensors file, with a checksum over all of it and no pickle."""

import json
import zlib
from pathlib import Path
from typing import BinaryIO

from safetensors import safe_open
from torch import Tensor

from aprune.files import check_ordinary
from aprune.tensor_file import pieces_of
from aprune.training.state import State

_FORMAT, _VERSION = "aprune.checkpoint", "1"
_CHUNK = 2**24  # bytes
_TO_CHECKSUM = b'{"__metadata__":{"checksum":"'
_NO_CHECKSUM = "0" * 8


def write_state(file: BinaryIO, key: str, state: State) -> None:
    """Write a state tensor by tensor, so that it needs no memory of its own.

    Args:
        file: Where to; it can be moved about in.
        key: Of the run.
        state: Tensors on any device, and what JSON can hold.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in state.items() if name not in tensors}
    metadata = {
        "checksum": _NO_CHECKSUM,  # of all the other bytes, and known when they are written
        "format": _FORMAT,
        "version": _VERSION,
        "key": key,
        "state": json.dumps(rest),
    }
    pieces = pieces_of(metadata, tensors)
    file.write(head := next(pieces))
    checksum = _checksum_of_header(head[8:])
    for octets in pieces:
        checksum = zlib.crc32(octets, checksum)
        file.write(octets)
    file.seek(8 + len(_TO_CHECKSUM))
    file.write(f"{checksum:08x}".encode())


def read_state(path: Path, key: str) -> State:
    """Read a state of the run of that key.

    Raises:
        ValueError: It is not what was written. Other errors are possible where it is no such file.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     write_state(file, "mine", {"step": 5, "weight": torch.ones(2)})
        ...     file.flush()
        ...     read_state(Path(file.name), "mine")
        {'step': 5, 'weight': tensor([1., 1.])}
    """
    check_ordinary(path)
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError("a header longer than the file")
        text = raw.read(size)
        checksum = _checksum_of_header(text)
        while chunk := raw.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        expected = {
            "checksum": f"{checksum:08x}",
            "format": _FORMAT,
            "version": _VERSION,
            "key": key,
        }
        if {name: metadata[name] for name in expected} != expected:
            raise ValueError("not what was written")
        state = dict(json.loads(metadata["state"]))
        # a copy: the tensors of a mapped file would die with it if somebody cut it short
        return state | {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _checksum_of_header(text: bytes) -> int:
    begin = len(_TO_CHECKSUM)
    return zlib.crc32(text[begin + len(_NO_CHECKSUM) :], zlib.crc32(text[:begin]))
