"""Images of the user's own: one sub-folder for each class."""

import hashlib
import os
from pathlib import Path

import torch

from aprune.errors import TaskError
from aprune.files import printable
from aprune.tasks.cache import remember
from aprune.tasks.dataset import DataSet
from aprune.tasks.decode import Encoded, decode_images
from aprune.tasks.task import Augment

DEFAULT_SIZE = 32
SUFFIXES = frozenset(
    {".png", ".webp", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)

Listing = dict[str, list[Path]]  # the image files of each class


def read_folder(folder: Path, size: int | None = None, *, cached: bool = True) -> DataSet:
    """Read a folder of images in colour, each resized to `size` × `size`.

    With sub-folders `train` and `test`, each with the same class folders, that is the split.
    Otherwise a fifth of each class, chosen by the names of the files, is for testing.

    Args:
        folder: The folder.
        size: Pixels of the shorter side after resizing (then the centre is cut out); 32 by default.
        cached: Whether decoded images may come from the cache and go there.

    Returns:
        The whole data set; the classes are the sorted names of the sub-folders.

    Raises:
        TaskError: The folder or an image is not as it should be.
    """
    size = DEFAULT_SIZE if size is None else size
    train, test = list_images(folder)
    name = _as_text(folder.resolve().name) or "folder"

    def make() -> DataSet:
        return DataSet(
            name=name,
            train_images=_decode(train, size, f"decoding {name} (train)"),
            train_labels=_number(train),
            test_images=_decode(test, size, f"decoding {name} (test)"),
            test_labels=_number(test),
            classes=tuple(_as_text(name) for name in train),
            augment=Augment(flip=True, shift=size // 8),
        )

    if not cached:
        return make()
    files = [file for part in (train, test) for files in part.values() for file in files]
    return remember("folder", folder, files, f"size {size}", make)


def list_images(folder: Path) -> tuple[Listing, Listing]:
    """Return the image files of each class, for training and for testing.

    Args:
        folder: The folder, with or without `train` and `test`.

    Returns:
        Two dictionaries from class name to sorted files, with the same classes.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise TaskError(f"{folder} {what}; give a folder with one sub-folder of images per class")
    try:
        for place in (folder / "train", folder / "test"):
            _check_no_link(place)
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            train, test = _list_classes(folder / "train"), _list_classes(folder / "test")
            lone = sorted(set(train) ^ set(test))
            if lone:
                raise TaskError(
                    f"class {printable(lone[0])} is only in one of {folder / 'train'} and"
                    f" {folder / 'test'}; both need the same class folders"
                )
            return train, test
        return _split(_list_classes(folder))
    except OSError as error:
        raise TaskError(
            f"{printable(error.filename or folder)} cannot be read: {error.strerror or error};"
            " give a folder with one sub-folder of images per class"
        ) from None


def _list_classes(folder: Path) -> Listing:
    """Return the sorted image files of each sub-folder, the sub-folders sorted too."""
    places = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(places) < 2:
        found = f"only {printable(places[0].name)}" if places else "none"
        raise TaskError(
            f"{folder} needs at least 2 sub-folders of images, one per class; found {found}"
        )
    for place in places:
        _check_no_link(place)
    listing = {place.name: _list_files(place) for place in places}
    for name, files in listing.items():
        if not files:
            raise TaskError(
                f"{printable(folder / name)} has no images ({', '.join(sorted(SUFFIXES))}); add some, or"
                " remove the folder"
            )
    return listing


def _check_no_link(place: Path) -> None:
    """Raise a `TaskError` if a folder is a link, which may lead anywhere; images may well be links."""
    if place.is_symlink():
        raise TaskError(
            f"{printable(place)} is a link; expected a folder: put a copy of it there, or a folder"
            " of links to its images"
        )


def _list_files(place: Path) -> list[Path]:
    files = (file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES)
    return sorted(
        file
        for file in files
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(place).parts)
    )


def _split(listing: Listing) -> tuple[Listing, Listing]:
    """Put a fifth of each class aside, ranked by a hash of the file's name: no seed, no luck."""
    train: Listing = {}
    test: Listing = {}
    for name, files in listing.items():
        if len(files) < 2:
            raise TaskError(
                f"{printable(files[0].parent)} has 1 image; a class needs at least 2, one of them"
                " for testing"
            )
        ranked = sorted(files, key=lambda file: hashlib.sha256(os.fsencode(file.name)).digest())
        count = max(1, round(len(files) / 5))
        test[name], train[name] = sorted(ranked[:count]), sorted(ranked[count:])
    return train, test


def _as_text(name: str) -> str:
    """Return a file's name as text that can be written anywhere: not all names are text."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _decode(listing: Listing, size: int, title: str) -> torch.Tensor:
    files = [file for files in listing.values() for file in files]
    images = (Encoded(file, str(file)) for file in files)
    return decode_images(images, len(files), mode="RGB", size=size, title=title)


def _number(listing: Listing) -> torch.Tensor:
    counts = torch.tensor([len(files) for files in listing.values()])
    return torch.arange(len(counts)).repeat_interleave(counts)
