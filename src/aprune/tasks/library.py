"""The data sets that are known by name: reading, describing, fetching and checking them."""

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from aprune.errors import TaskError
from aprune.files import printable
from aprune.tasks.cache import remember
from aprune.tasks.dataset import DataSet
from aprune.tasks.digits import read_digits
from aprune.tasks.folder import check_folder, read_folder
from aprune.tasks.hub import locate, obtain
from aprune.tasks.parquet import (
    ParquetSet,
    check_parquet,
    count_rows,
    find_shards,
    read_class_names,
    read_labels,
    read_parquet,
    read_shape,
)
from aprune.tasks.task import Augment

EMBEDDED = "embedded"
FOLDER = "folder:"

KNOWN = {
    known.name: known
    for known in (
        ParquetSet("mnist", "mnist", "ylecun/mnist", "image", "label", "L", 10, Augment(False, 2)),
        ParquetSet(
            "cifar10", "plain_text", "uoft-cs/cifar10", "img", "label", "RGB", 10, Augment(True, 4)
        ),
        ParquetSet(
            "cifar100",
            "cifar100",
            "uoft-cs/cifar100",
            "img",
            "fine_label",
            "RGB",
            100,
            Augment(True, 4),
        ),
    )
}


@dataclass(frozen=True)
class DataDescription:
    """What is cheaply known of a data set.

    Attributes:
        name: Its name.
        where: The folder, "embedded", or "not here".
        train: Number of training images, if it is here.
        test: Number of test images.
        classes: Number of classes with images.
        shape: Channels, height and width of an image.
        problem: What is wrong with its files, if anything is.
    """

    name: str
    where: str
    train: int | None = None
    test: int | None = None
    classes: int | None = None
    shape: tuple[int, int, int] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class DataCheck:
    """What a look at every image of a data set has found.

    Attributes:
        name: Its name.
        where: The folder, or "embedded".
        train: Number of training images of each class that has any.
        test: Number of test images of each class that has any.
        shape: Channels, height and width of an image.
        checksum: SHA-256 of all pixels and labels.
        left_out: In a folder, number of files that are not read, by their ending or where they are.
    """

    name: str
    where: str
    train: Mapping[str, int]
    test: Mapping[str, int]
    shape: tuple[int, int, int]
    checksum: str
    left_out: Mapping[str, int] = field(default_factory=dict)


def task_names() -> tuple[str, ...]:
    """Return what `load_task` takes as a name; for `PATH` put a folder of your own.

    Example:
        >>> task_names()
        ('digits', 'mnist', 'cifar10', 'cifar100', 'folder:PATH')
    """
    return ("digits", *KNOWN, f"{FOLDER}PATH")


def read_dataset(name: str, size: int | None = None) -> DataSet:
    """Read a whole data set, from the cache of decoded images if it is there.

    Args:
        name: One of `task_names()`.
        size: For a folder, the size to which its images are resized; others are read as they are.

    Returns:
        The data set.

    Example:
        >>> read_dataset("digits").shape
        (1, 8, 8)
    """
    if name == "digits":
        return read_digits()
    if name.startswith(FOLDER):
        return read_folder(_folder_path(name), size)
    known = _find_known(name)
    place = obtain(known)
    files = find_shards(place, "train") + find_shards(place, "test")
    return remember(known.name, place, files, "", lambda: read_parquet(known, place))


def describe_data() -> list[DataDescription]:
    """Say which of the known data sets are on this machine, without decoding or fetching them.

    Returns:
        One description for each.

    Example:
        >>> describe_data()[0]
        DataDescription(name='digits', where='embedded', train=1198, test=599, classes=10, \
shape=(1, 8, 8), problem=None)
    """
    digits = read_digits()
    first = DataDescription(
        name="digits",
        where=EMBEDDED,
        train=len(digits.train_labels),
        test=len(digits.test_labels),
        classes=len(digits.present),
        shape=digits.shape,
    )
    return [first, *(_describe(known) for known in KNOWN.values())]


def fetch(name: str) -> str:
    """Make sure that a data set is on this machine, fetching it if need be.

    Args:
        name: One of `task_names()`.

    Returns:
        The folder where it is, or "embedded".

    Example:
        >>> fetch("digits")
        'embedded'
    """
    if name == "digits":
        return EMBEDDED
    if name.startswith(FOLDER):
        path = _folder_path(name)
        if not path.is_dir():
            raise TaskError(f"{path} is not a folder; folders of your own cannot be fetched")
        return str(path)
    return str(obtain(_find_known(name)))


def check(name: str) -> DataCheck:
    """Decode every image of a data set anew, count them and compute the checksum.

    Args:
        name: One of `task_names()`.

    Returns:
        What was found; anything wrong raises a `TaskError` that names file and row, of all images
        that cannot be read.

    Example:
        >>> sum(check("digits").test.values())
        599
    """
    where, data, left_out = _read_anew(name)
    return DataCheck(
        name=name,
        where=where,
        train=_count(data, data.train_labels),
        test=_count(data, data.test_labels),
        shape=data.shape,
        checksum=data.checksum,
        left_out=left_out,
    )


def _read_anew(name: str) -> tuple[str, DataSet, Mapping[str, int]]:
    """Return where a data set is, all of it past the cache, and what it leaves out."""
    if name == "digits":
        return EMBEDDED, read_digits(), {}
    if name.startswith(FOLDER):
        path = _folder_path(name)
        return str(path), *check_folder(path)
    known = _find_known(name)
    place = obtain(known)
    return str(place), check_parquet(known, place), {}


def _describe(known: ParquetSet) -> DataDescription:
    try:
        place = locate(known)
    except TaskError as error:
        return DataDescription(known.name, "not here", problem=str(error))
    if place is None:
        return DataDescription(known.name, "not here")
    train, test = find_shards(place, "train"), find_shards(place, "test")
    try:
        limit = len(read_class_names(known, test[0]))
        return DataDescription(
            name=known.name,
            where=str(place),
            train=count_rows(train),
            test=count_rows(test),
            classes=len(
                {label for part in test for label in read_labels(known, part, limit).tolist()}
            ),
            shape=read_shape(known, test[0]),
        )
    except TaskError as error:
        return DataDescription(known.name, str(place), problem=str(error))


def _count(data: DataSet, labels: torch.Tensor) -> dict[str, int]:
    counts = labels.bincount(minlength=len(data.classes)).tolist()
    return {name: count for name, count in zip(data.classes, counts, strict=True) if count}


def _find_known(name: str) -> ParquetSet:
    if name in KNOWN:
        return KNOWN[name]
    meant = difflib.get_close_matches(name, ("digits", *KNOWN), n=1)
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # not every name can be a path
        if name and Path(name).expanduser().is_dir():
            meant.append(f"{FOLDER}{printable(name)}")
    hint = (
        f"did you mean {' or '.join(meant)}?"
        if meant
        else f"choose one of {', '.join(task_names())}"
    )
    raise TaskError(f"there is no task {name!r}; {hint}")


def _folder_path(name: str) -> Path:
    text = name.removeprefix(FOLDER)
    if not text:
        raise TaskError(f"got {name!r} without a path; write {FOLDER}PATH")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise TaskError(f"there is no home folder for {text}; give the whole path") from None
