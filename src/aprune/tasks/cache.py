"""Decoded data sets kept on disk, so that 60,000 images are decoded only once."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aprune.errors import FileError, TaskError
from aprune.files import cache_folder, check_ordinary, printable, writing
from aprune.tasks.dataset import DataSet
from aprune.tasks.task import Augment

_FORMAT = "1"  # raise it when decoding or splitting changes, so that older files are remade
# What reading numbers and texts that somebody made up can end in; a RecursionError is a RuntimeError.
_DAMAGED = (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError)
_LARGEST_SHIFT = 1024  # pixels
_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


def remember(
    name: str, folder: Path, files: Sequence[Path], setting: str, make: Callable[[], DataSet]
) -> DataSet:
    """Return a data set from the cache, or make it and keep it there.

    What is kept counts only if names, sizes and times of the source files are those of today and
    the checksum of the tensors is right. Otherwise it is made anew, without a word; a cache that
    cannot be written is no error either.

    Args:
        name: Beginning of the cache file's name.
        folder: Where the source files are.
        files: The source files.
        setting: Whatever else decides the result.
        make: Reads the source files.

    Returns:
        The data set.
    """
    cache = cache_folder()
    if cache is None:
        return make()
    place = hashlib.sha256(json.dumps([str(folder.resolve()), setting]).encode()).hexdigest()[:16]
    path = cache / f"{name}-{place}.safetensors"
    sources = _fingerprint(folder, files)
    data = _load(path, sources)
    if data is None:
        data = make()
        _save(data, path, sources)
    return data


def _fingerprint(folder: Path, files: Sequence[Path]) -> str:
    """Return a hash of the names, sizes and times of the source files."""
    facts = []
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise TaskError(
                f"{printable(file)} cannot be read: {error.strerror}; get it again"
            ) from None
        facts.append([file.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _load(path: Path, sources: str) -> DataSet | None:
    """Return what is kept at `path`, or `None` if it is not there, outdated or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        check_ordinary(path)
        with safe_open(path, framework="pt") as file:
            note = file.metadata() or {}
            if note.get("format") != _FORMAT or note.get("sources") != sources:
                return None
            # A copy: the tensors of a mapped file would die with it if somebody cut it short.
            tensors = {part: file.get_tensor(part).clone() for part in _PARTS}
        augment, classes = json.loads(note["augment"]), json.loads(note["classes"])
        if not _is_sound(tensors, augment, classes):
            return None
        data = DataSet(
            name=note["name"],
            **tensors,
            classes=tuple(classes),
            augment=Augment(flip=augment["flip"], shift=augment["shift"]),
        )
    except (OSError, SafetensorError, *_DAMAGED, TaskError):
        return None
    return data if data.checksum == note.get("checksum") else None


def _is_sound(tensors: dict[str, torch.Tensor], augment: Any, classes: Any) -> bool:
    """Whether types, shapes and ranges are those of images and labels."""
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        return False
    if type(augment["flip"]) is not bool or type(augment["shift"]) is not int:
        return False
    if not 0 <= augment["shift"] <= _LARGEST_SHIFT:
        return False
    return all(
        images.dtype == torch.uint8
        and images.ndim == 4
        and labels.dtype == torch.int64
        and labels.shape == images.shape[:1]
        and images.numel() > 0
        and bool(((labels >= 0) & (labels < len(classes))).all())
        for images, labels in (
            (tensors["train_images"], tensors["train_labels"]),
            (tensors["test_images"], tensors["test_labels"]),
        )
    )


def _save(data: DataSet, path: Path, sources: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    note = {
        "format": _FORMAT,
        "sources": sources,
        "checksum": data.checksum,
        "name": data.name,
        "classes": json.dumps(data.classes),
        "augment": json.dumps({"flip": data.augment.flip, "shift": data.augment.shift}),
    }
    tensors = {part: getattr(data, part).contiguous() for part in _PARTS}
    with contextlib.suppress(FileError, OSError, SafetensorError), writing(path) as temporary:
        save_file(tensors, temporary, metadata=note)
