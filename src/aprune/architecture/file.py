"""The file of an architecture: safetensors with one packed mask a tensor, and nothing unchecked.

The metadata hold the format and its version, names and shapes (`tensors`), their fingerprint, the
provenance as JSON, and a checksum over all of it, so that no damage goes unnoticed. Equal
architectures make equal files. VGG19 (139.6 M connections) takes 17.5 MB.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from aprune.architecture import bits
from aprune.architecture.provenance import dump_provenance, parse_provenance
from aprune.architecture.shape import check_shapes, dump_shapes, fingerprint, quote
from aprune.errors import ArchitectureError
from aprune.files import writing
from aprune.tensor_file import pieces_of

_FORMAT = "aprune.architecture"
_VERSION = 1


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes:
        shapes: the shape of each mask, in the order of the parent.
        packed: the bits of each mask.
        provenance: where the architecture comes from, as JSON.
    """

    shapes: Mapping[str, tuple[int, ...]]
    packed: Mapping[str, bytes]
    provenance: str


def write(content: Content, path: Path | str) -> None:
    """Write the file, or leave what was there as it was.

    Raises:
        FileError: if nothing can be written there.
    """
    tensors = dump_shapes(content.shapes)
    metadata = {
        "format": _FORMAT,
        "version": str(_VERSION),
        "fingerprint": fingerprint(content.shapes),
        "tensors": tensors,
        "provenance": content.provenance,
        "checksum": _checksum(tensors, content.provenance, content.packed.values()),
    }
    packed = {name: bits.as_tensor(mask) for name, mask in content.packed.items()}
    with writing(path) as temporary, temporary.open("wb") as file:
        file.writelines(pieces_of(metadata, packed))


def read(path: Path | str) -> Content:
    """Read the file and check everything that it says.

    Raises:
        ArchitectureError: if it is missing, damaged, foreign or newer than this version.
    """
    try:
        if not Path(path).is_file():
            found = "it is a folder" if Path(path).is_dir() else "there is no such file"
            raise ArchitectureError(f"{found}; expected a file that `aprune find` wrote")
        with safe_open(path, framework="numpy") as file:
            return _read(file)
    except ArchitectureError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.strerror or error}"
    except SafetensorError:
        reason = "it is truncated, damaged, or no safetensors file at all"
    raise ArchitectureError(f"cannot load {path}: {reason}")


def _read(file: Any) -> Content:
    metadata = file.metadata() or {}
    _check_version(metadata)
    for key in ("fingerprint", "tensors", "provenance", "checksum"):
        if key not in metadata:
            raise ArchitectureError(f"the file is damaged: it has no {key}")
    shapes = _parse_shapes(metadata["tensors"])
    if metadata["fingerprint"] != fingerprint(shapes):
        raise ArchitectureError("the file is damaged: its shapes do not have its fingerprint")
    try:
        provenance = dump_provenance(parse_provenance(metadata["provenance"]))
    except (ValueError, RecursionError) as error:
        raise ArchitectureError("the file is damaged: its provenance is no JSON object") from error
    if set(file.keys()) != set(shapes):
        raise ArchitectureError("the file is damaged: its masks are not those that it names")
    packed = {name: _read_mask(file, name, shape) for name, shape in shapes.items()}
    checksum = _checksum(metadata["tensors"], metadata["provenance"], packed.values())
    if metadata["checksum"] != checksum:
        raise ArchitectureError("the file is damaged: its content does not have its checksum")
    return Content(shapes, packed, provenance)


def _check_version(metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise ArchitectureError("it is a safetensors file, but not of an architecture")
    version = metadata.get("version", "")
    if version == str(_VERSION):
        return
    newer = version.isascii() and version.isdecimal() and len(version) < 10
    if newer and int(version) > _VERSION:
        raise ArchitectureError(
            f"written by a newer aprune (format {version}); this one reads {_VERSION}: upgrade"
        )
    raise ArchitectureError(
        f"the file is damaged: its version is {quote(version)}, expected {_VERSION}"
    )


def _parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    try:
        entries = json.loads(text)
        shapes = {name: tuple(shape) for name, shape in entries}
    except (ValueError, TypeError, RecursionError) as error:
        raise ArchitectureError("the file is damaged: its shapes cannot be read") from error
    if len(shapes) != len(entries):
        raise ArchitectureError("the file is damaged: a name appears twice")
    if not all(type(size) is int for shape in shapes.values() for size in shape):
        raise ArchitectureError("the file is damaged: a size is not a whole number")
    check_shapes(shapes)
    return shapes


def _read_mask(file: Any, name: str, shape: tuple[int, ...]) -> bytes:
    view = file.get_slice(name)
    expected = bits.packed_size(shape)
    # Looked at before anything is read, so that no lie about sizes can claim memory.
    if view.get_dtype() != "U8" or view.get_shape() != [expected]:
        raise ArchitectureError(
            f"the file is damaged: the mask of {quote(name)} is not {expected:,} bytes"
        )
    packed: bytes = file.get_tensor(name).tobytes()
    if bits.unused_bits(packed, shape):
        raise ArchitectureError(
            f"the file is damaged: the mask of {quote(name)} has bits after its last connection"
        )
    return packed


def _checksum(tensors: str, provenance: str, packed: Iterable[bytes]) -> str:
    # The lengths of the masks follow from `tensors`; that of the first two has to be said.
    digest = hashlib.sha256(json.dumps([tensors, provenance]).encode())
    for mask in packed:
        digest.update(mask)
    return digest.hexdigest()
