"""Where the images of a folder are: its parts, its classes, and what is left out."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aprune.errors import TaskError
from aprune.files import printable

SUFFIXES = frozenset(
    {".png", ".webp", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)
_TRAIN, _TEST = "train", "test"
_PARTS = frozenset({_TRAIN, _TEST, "training", "testing", "val", "valid", "validation"})
_TOLD = 5  # kinds of files that a message names

Listing = dict[str, list[Path]]  # the image files of each class


@dataclass(frozen=True)
class Layout:
    """The images of a folder.

    Attributes:
        train: The files of each class for training, sorted.
        test: Those for testing, of the same classes.
        left_out: How many files are not read, by their ending or where they are.
    """

    train: Listing
    test: Listing
    left_out: Mapping[str, int]

    @property
    def files(self) -> list[Path]:
        """Return all images that are read, those for training first."""
        return [f for part in (self.train, self.test) for files in part.values() for f in files]


def list_images(folder: Path) -> Layout:
    """Find the image files of each class, for training and for testing.

    What looks like an image but is none that is read, or lies where none is looked for, is counted.
    Hidden files are passed over.

    Args:
        folder: The folder, with or without `train` and `test`.

    Returns:
        The files; training and testing have the same classes.

    Raises:
        TaskError: The folder has no classes, parts that are not `train` and `test`, or a link in
            place of a folder.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise TaskError(f"{folder} {what}; give a folder with one sub-folder of images per class")
    left_out: Counter[str] = Counter()
    try:
        parts = _find_parts(folder)
        if parts is None:
            train, test = _split(_list_classes(folder, left_out))
        else:
            train, test = (_list_classes(part, left_out) for part in parts)
            _check_same(train, test, parts)
            _count_unused([p for p in _list_folders(folder) if p not in parts], left_out)
            _count_images([p for p in folder.iterdir() if not _is_folder(p)], left_out)
    except OSError as error:
        raise TaskError(
            f"{printable(error.filename or folder)} cannot be read: {error.strerror or error};"
            " give a folder with one sub-folder of images per class"
        ) from None
    return Layout(train, test, dict(left_out))


def name_left_out(left_out: Mapping[str, int]) -> str:
    """Name the kinds of files that are not read, those with most files first.

    Example:
        >>> name_left_out({".avif": 2, "in val/": 10, ".heic": 2})
        '10 in val/, 2 .avif, 2 .heic'
    """
    kinds = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{count:,} {printable(kind)}" for kind, count in kinds[:_TOLD]]
    others = sum(count for _, count in kinds[_TOLD:])
    return ", ".join([*told, f"{others:,} more"] if others else told)


def _find_parts(folder: Path) -> tuple[Path, Path] | None:
    """Return the folders for training and for testing, or None if the sub-folders are classes."""
    for place in folder.iterdir():
        if place.name.lower() in (_TRAIN, _TEST):
            _check_no_link(place)
    places = _list_folders(folder)
    parts = [place for place in places if place.name.lower() in _PARTS]
    train = [part for part in parts if part.name.lower() == _TRAIN]
    test = [part for part in parts if part.name.lower() == _TEST]
    if len(train) == len(test) == 1:
        return train[0], test[0]
    # Trains can be a class among vehicles, and valid one beside invalid: such a folder has images.
    if len(parts) > 1 or (parts and (len(places) == 1 or _holds_folders(parts[0]))):
        raise TaskError(_explain(folder, parts, alone=len(places) == 1))
    return None


def _explain(folder: Path, parts: Sequence[Path], *, alone: bool) -> str:
    """Say what is wrong with parts that are not `train` and `test`, and what to do."""
    names = [printable(part.name) for part in parts]
    lower = [name.lower() for name in names]
    flat = f"put the class folders directly into {folder}, to test on a fifth of each class"
    if lower.count(_TRAIN) != 1 or _TEST in lower:
        return (
            f"{folder} has {' and '.join(names)}, which cannot be told from parts of a data set;"
            f" expected one train and one test: rename them, or {flat}"
        )
    others = [name for name in names if name.lower() != _TRAIN]
    if others:
        hint = f"rename {' or '.join(others)} to test, as what to test on"
    elif alone:
        hint = "add it, with the same class folders"
    else:
        hint = f"add it, with the same class folders; if {names[0]} is a class, put images into it"
    return f"{folder} has {' and '.join(names)}, but no test beside {names[0]}: {hint}; or {flat}"


def _list_classes(folder: Path, left_out: Counter[str]) -> Listing:
    """Return the sorted image files of each sub-folder, the sub-folders sorted too."""
    places = _list_folders(folder)
    if len(places) < 2:
        found = f"only {printable(places[0].name)}" if places else "none"
        raise TaskError(
            f"{folder} needs at least 2 sub-folders of images, one per class; found {found}"
        )
    for place in places:
        _check_no_link(place)
    listing = {place.name: _list_files(place, left_out) for place in places}
    for name, files in listing.items():
        if not files:
            raise TaskError(
                f"{printable(folder / name)} has no images ({', '.join(sorted(SUFFIXES))}); add some, or"
                " remove the folder"
            )
    _count_images([place for place in folder.iterdir() if not _is_folder(place)], left_out)
    return listing


def _list_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list_files(place: Path, left_out: Counter[str]) -> list[Path]:
    """Return the sorted images of a class; count what else is there."""
    files = []
    for file in _walk(place):
        if not file.is_file():
            left_out["leading to no file"] += 1
        elif file.suffix.lower() in SUFFIXES:
            files.append(file)
        else:
            left_out[file.suffix.lower() or "without an ending"] += 1
    return sorted(files)


def _count_unused(places: Sequence[Path], left_out: Counter[str]) -> None:
    """Count what lies in folders beside `train` and `test`: images, and all that is in a part."""
    for place in places:
        files = [place] if place.is_symlink() else _walk(place)
        is_part = place.name.lower() in _PARTS
        count = sum(is_part or file.suffix.lower() in SUFFIXES for file in files)
        if count:
            left_out[f"in {place.name}/"] += count


def _count_images(places: Sequence[Path], left_out: Counter[str]) -> None:
    """Count images that lie beside folders."""
    names = [place for place in places if not place.name.startswith(".")]
    count = sum(place.suffix.lower() in SUFFIXES for place in names)
    if count:
        left_out["beside the class folders"] += count


def _walk(place: Path) -> Iterator[Path]:
    """Yield what lies below a folder, but for folders and what is hidden; no link is followed."""
    waiting = [os.fspath(place)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield Path(entry.path)


def _is_folder(place: Path) -> bool:
    return not place.is_symlink() and place.is_dir()


def _holds_folders(place: Path) -> bool:
    """Tell whether a folder has sub-folders and no image of its own, as a part does."""
    if not _is_folder(place):
        return False
    inside = [entry for entry in place.iterdir() if not entry.name.startswith(".")]
    has_image = any(e.suffix.lower() in SUFFIXES and not _is_folder(e) for e in inside)
    return not has_image and any(_is_folder(entry) for entry in inside)


def _check_no_link(place: Path) -> None:
    """Raise a `TaskError` if a folder is a link, which may lead anywhere; images may well be links."""
    if place.is_symlink():
        raise TaskError(
            f"{printable(place)} is a link; expected a folder: put a copy of it there, or a folder"
            " of links to its images"
        )


def _check_same(train: Listing, test: Listing, parts: tuple[Path, Path]) -> None:
    lone = sorted(set(train) ^ set(test))
    if lone:
        raise TaskError(
            f"class {printable(lone[0])} is only in one of {parts[0]} and {parts[1]}; both need the"
            " same class folders"
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
