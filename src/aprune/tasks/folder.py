"""Images of the user's own: one sub-folder for each class."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from aprune.errors import ApruneWarning, TaskError
from aprune.tasks.cache import remember
from aprune.tasks.dataset import DataSet
from aprune.tasks.decode import Encoded, decode_images, name_unreadable
from aprune.tasks.layout import SUFFIXES, Layout, Listing, list_images, name_left_out
from aprune.tasks.task import Augment

DEFAULT_SIZE = 32


def read_folder(folder: Path, size: int | None = None) -> DataSet:
    """Read a folder of images in colour, each resized to `size` × `size`.

    With sub-folders `train` and `test`, each with the same class folders, that is the split.
    Otherwise a fifth of each class, chosen by the names of the files, is for testing. Files that are
    not read are told in an `ApruneWarning`.

    Args:
        folder: The folder.
        size: Pixels of the shorter side after resizing (then the centre is cut out); 32 by default.

    Returns:
        The whole data set; the classes are the sorted names of the sub-folders.

    Raises:
        TaskError: The folder or an image is not as it should be.
    """
    size = DEFAULT_SIZE if size is None else size
    found = list_images(folder)
    if found.left_out:
        _warn(folder, found.left_out)
    return remember(
        "folder", folder, found.files, f"size {size}", lambda: _decode(folder, found, size)
    )


def check_folder(folder: Path) -> tuple[DataSet, Mapping[str, int]]:
    """Read a folder anew.

    Args:
        folder: The folder.

    Returns:
        The whole data set, and how many files were not read, by their ending or where they are.

    Raises:
        TaskError: The folder is not as it should be, or images cannot be read: it names them all.
    """
    found = list_images(folder)
    try:
        return _decode(folder, found, DEFAULT_SIZE), found.left_out
    except TaskError as error:
        if error.reason is None:
            raise
        images = _encode(found.train) + _encode(found.test)
        raise name_unreadable(images, len(images), mode="RGB", size=DEFAULT_SIZE) or error from None


def _warn(folder: Path, left_out: Mapping[str, int]) -> None:
    total = sum(left_out.values())
    warnings.warn(
        f"{total:,} {'file' if total == 1 else 'files'} in {folder} not read:"
        f" {name_left_out(left_out)}; only {', '.join(sorted(SUFFIXES))} in class folders are, so"
        " convert or move what is missing",
        ApruneWarning,
        stacklevel=2,
    )


def _decode(folder: Path, found: Layout, size: int) -> DataSet:
    name = _as_text(folder.resolve().name) or "folder"
    return DataSet(
        name=name,
        train_images=_decode_part(found.train, size, f"decoding {name} (train)"),
        train_labels=_number(found.train),
        test_images=_decode_part(found.test, size, f"decoding {name} (test)"),
        test_labels=_number(found.test),
        classes=tuple(_as_text(name) for name in found.train),
        augment=Augment(flip=True, shift=size // 8),
    )


def _decode_part(listing: Listing, size: int, title: str) -> torch.Tensor:
    images = _encode(listing)
    return decode_images(images, len(images), mode="RGB", size=size, title=title)


def _encode(listing: Listing) -> list[Encoded]:
    return [Encoded(file, str(file)) for files in listing.values() for file in files]


def _as_text(name: str) -> str:
    """Return a file's name as text that can be written anywhere: not all names are text."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _number(listing: Listing) -> torch.Tensor:
    counts = torch.tensor([len(files) for files in listing.values()])
    return torch.arange(len(counts)).repeat_interleave(counts)
