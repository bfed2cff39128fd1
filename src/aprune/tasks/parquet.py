"""Image data sets as parquet files, in the layout of the Hugging Face Hub."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from aprune.errors import TaskError
from aprune.files import printable
from aprune.tasks.dataset import DataSet
from aprune.tasks.decode import Encoded, decode_images, name_unreadable
from aprune.tasks.pages import measure, opened, read_footer
from aprune.tasks.task import Augment

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH = 1024  # rows read at once
_ROOM = 2**23  # bytes for them where one stored value may stand in many rows
# Bytes of decoded images that files of any size may become, and for each of their own bytes.
_FLOOR, _FACTOR = 2**24, 1000
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.parquet$")


@dataclass(frozen=True)
class ParquetSet:
    """A data set that is known by name.

    Attributes:
        name: Its name here, which is also the folder below `$APRUNE_DATA`.
        config: The folder with the parquet files, below that or in the repository.
        repository: Where it is on the Hub.
        image_column: The column with the encoded images.
        label_column: The column with the class numbers.
        mode: "RGB" or "L".
        num_classes: Number of classes, for files that do not name them.
        augment: How training images may be varied.
    """

    name: str
    config: str
    repository: str
    image_column: str
    label_column: str
    mode: str
    num_classes: int
    augment: Augment


def find_shards(folder: Path, part: str) -> list[Path]:
    """Return the files of the "train" or "test" part in order, and make sure that none is missing.

    Args:
        folder: The folder of the configuration.
        part: "train" or "test".

    Returns:
        The files; none if the folder has no such part.

    Example:
        >>> find_shards(Path("nowhere"), "train")
        []
    """
    shards = sorted(folder.glob(f"{part}-*.parquet"))
    matches = [match for match in (_SHARD.search(shard.name) for shard in shards) if match]
    totals = {int(match[2]) for match in matches}
    if len(totals) > 1:
        raise TaskError(
            f"{folder} mixes {part} files of {len(totals)} different downloads ({shards[0].name},"
            f" …, {shards[-1].name}); keep only one"
        )
    total = max(totals, default=0)  # a name may claim any number, so they are not listed
    there = {int(match[1]) for match in matches if int(match[1]) < total}
    if lacking := total - len(there):
        first = next(number for number in range(len(there) + 1) if number not in there)
        raise TaskError(
            f"{folder} lacks {lacking} of {total} {part} files, the first of them number"
            f" {first}; get the data set again"
        )
    return shards


def read_parquet(known: ParquetSet, folder: Path) -> DataSet:
    """Read and decode the data set in `folder`.

    Args:
        known: What is known of it.
        folder: The folder with `train-*.parquet` and `test-*.parquet`.

    Returns:
        The whole data set.

    Raises:
        TaskError: A column, an image or a label is not what it should be; names file and row.
    """
    train, test = find_shards(folder, "train"), find_shards(folder, "test")
    for part, shards in (("train", train), ("test", test)):
        if not shards:
            raise TaskError(f"{folder} has no {part}-*.parquet; get {known.name} again")
    classes = read_class_names(known, train[0])
    for shard in (*train, *test):
        if read_class_names(known, shard) != classes:
            raise TaskError(f"{shard} names other classes than {train[0].name}; get it again")
    train_images, train_labels = _read_part(known, train, len(classes), "train")
    test_images, test_labels = _read_part(known, test, len(classes), "test")
    return DataSet(
        name=known.name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        classes=classes,
        augment=known.augment,
    )


def check_parquet(known: ParquetSet, folder: Path) -> DataSet:
    """Read the data set in `folder`; if images cannot be read, the error names them all.

    Args:
        known: What is known of it.
        folder: The folder with `train-*.parquet` and `test-*.parquet`.

    Returns:
        The whole data set.
    """
    try:
        return read_parquet(known, folder)
    except TaskError as error:
        if error.reason is None:
            raise
        shards = find_shards(folder, "train") + find_shards(folder, "test")
        images = (image for shard in shards for image in _read_images(known, shard))
        raise name_unreadable(images, count_rows(shards), mode=known.mode) or error from None


def _read_part(
    known: ParquetSet, shards: Sequence[Path], num_classes: int, part: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of the training or test files."""
    labels = torch.cat([read_labels(known, shard, num_classes) for shard in shards])
    if not len(labels):
        raise TaskError(f"{shards[0]} holds no image; get {known.name} again")
    images = decode_images(
        (image for shard in shards for image in _read_images(known, shard)),
        len(labels),
        mode=known.mode,
        title=f"decoding {known.name} ({part})",
        most=_FLOOR + _FACTOR * sum(shard.stat().st_size for shard in shards),
    )
    return images, labels


def read_class_names(known: ParquetSet, shard: Path) -> tuple[str, ...]:
    """Return the class names in a file's header, or plain numbers if it has none.

    Args:
        known: What is known of the data set.
        shard: One of its files.

    Returns:
        All names, also those of classes that have no images.
    """
    with _opened(shard, ()) as file:
        header = (file.schema_arrow.metadata or {}).get(b"huggingface")
    numbers = tuple(str(label) for label in range(known.num_classes))
    if header is None:
        return numbers
    try:
        names = json.loads(header)["info"]["features"][known.label_column]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return numbers
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        return numbers
    return tuple(names)


def read_labels(known: ParquetSet, shard: Path, num_classes: int) -> torch.Tensor:
    """Return the labels of a file as an int64 tensor, each of them checked.

    Args:
        known: What is known of the data set.
        shard: One of its files.
        num_classes: Labels must be below this.

    Returns:
        One label for each row.
    """
    import pyarrow as pa

    with _opened(shard, (known.label_column,)) as file:
        _check_columns(file, shard, (known.image_column, known.label_column))
        kind = file.schema_arrow.field(known.label_column).type
        if not pa.types.is_integer(kind):
            raise TaskError(
                f"{shard}: column {known.label_column} holds {_name(kind)}; expected whole numbers"
            )
        column = file.read(columns=[known.label_column]).column(known.label_column)
    labels = column.combine_chunks()
    if labels.null_count:
        row = int(np.argmax(labels.is_null().to_numpy(zero_copy_only=False)))
        raise TaskError(f"{shard}, row {row}: the label is missing; get the file again")
    numbers = labels.to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= num_classes))
    if len(wrong):
        raise TaskError(
            f"{shard}, row {wrong[0]}: got label {numbers[wrong[0]]}; the file names {num_classes}"
            f" classes, so expected 0 … {num_classes - 1}"
        )
    return torch.from_numpy(numbers)


def count_rows(shards: Sequence[Path]) -> int:
    """Return how many images the files hold, from their headers alone.

    Args:
        shards: The files.

    Returns:
        The total.
    """
    total = 0
    for shard in shards:
        with _reading(shard):
            total += read_footer(shard).rows
    return total


def read_shape(known: ParquetSet, shard: Path) -> tuple[int, int, int]:
    """Return channels, height and width of the first image of a file.

    Args:
        known: What is known of the data set.
        shard: One of its files.

    Returns:
        The shape.
    """
    first = next(_read_images(known, shard, batch=1), None)
    if first is None:
        raise TaskError(f"{shard} holds no image; get it again")
    _, channels, height, width = decode_images([first], 1, mode=known.mode).shape
    return channels, height, width


def _read_images(known: ParquetSet, shard: Path, batch: int = _BATCH) -> Iterator[Encoded]:
    """Yield the encoded images of a file, row by row."""
    import pyarrow.compute as pc

    row = 0
    with _opened(shard, ()) as file:
        _check_columns(file, shard, (known.image_column, known.label_column))
        column, is_struct = _find_bytes(file, shard, known.image_column)
        widest = measure(shard, read_footer(shard), column).widest
        batch = max(1, min(batch, _ROOM // max(1, widest)))
        for rows in file.iter_batches(batch_size=batch, columns=[column]):
            images = pc.struct_field(rows.column(0), "bytes") if is_struct else rows.column(0)
            for data in images.to_pylist():
                if data is None:
                    raise TaskError(f"{shard}, row {row}: the image is missing; get the file again")
                yield Encoded(data, f"{shard}, row {row}")
                row += 1


def _find_bytes(file: "pq.ParquetFile", shard: Path, column: str) -> tuple[str, bool]:
    """Return where the bytes of the images are, plainly or in a struct as the Hub has them."""
    import pyarrow as pa

    whole = file.schema_arrow.field(column).type
    is_struct = pa.types.is_struct(whole) and whole.get_field_index("bytes") >= 0
    kind = whole.field("bytes").type if is_struct else whole
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise TaskError(f"{shard}: the image column holds {_name(whole)}; expected encoded images")
    return f"{column}.bytes" if is_struct else column, is_struct


def _check_columns(file: "pq.ParquetFile", shard: Path, wanted: Sequence[str]) -> None:
    names = file.schema_arrow.names
    if any(names.count(column) != 1 for column in wanted):
        raise TaskError(
            f"{shard} has the columns {_name(', '.join(names))}; expected {' and '.join(wanted)}"
        )


def _name(what: object) -> str:
    """Say what a file calls something: in one line, and not too long."""
    text = printable(what)
    return text if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def _opened(shard: Path, columns: Sequence[str]) -> Iterator["pq.ParquetFile"]:
    """Open a parquet file to read `columns`; whatever is wrong with it becomes a `TaskError`."""
    with _reading(shard), opened(shard, columns) as file:
        yield file


@contextmanager
def _reading(shard: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        raise TaskError(
            f"{shard} cannot be read as parquet ({_name(error)}); get the data set again"
        ) from None
