"""Parquet files of strangers: what they declare is checked before anything of them is read.

A page of a parquet file says how large it is when it is unpacked, and a reader believes it. A value of a
dictionary may stand in every row. So a few bytes can ask for any memory. Some contradictions in
the footer even end the process, since pyarrow does not catch them. So the footer and the headers of the
pages are read here first, and what does not fit the size of the file is refused.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aprune.files import check_ordinary

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FLOOR = 2**24  # bytes that a file of any size may become
FACTOR = 100  # and for each of its own bytes

_MAGIC = b"PAR1"
_HEADERS = (2**10, 2**24)  # bytes that a page's header has mostly, and at most
# Kinds of pages and of encodings, as the format numbers them.
_DICTIONARY_PAGE, _PLAIN = 2, (0, 2, 8)
_NUMBERS = (0, 1, 2, 4, 5)  # kinds of columns: bool, int32, int64, float, double
_DEEPEST = 32
# Kinds of values, as Thrift numbers them.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

Fields = dict[
    tuple[int, int], Any
]  # a reader passes over a field that is of another kind, and so do we


@dataclass(frozen=True)
class Column:
    """What the pages of a column declare.

    Attributes:
        size: Their bytes, unpacked.
        widest: Bytes of the largest value that may stand in many rows and be stored once; 0 if every
            value is stored where it stands.
    """

    size: int
    widest: int


@dataclass(frozen=True)
class Declared:
    """What the footer of a file declares.

    Attributes:
        rows: The number of rows.
        chunks: Of each column, by its path such as `img.bytes`, where its pages begin and end.
        numbers: The columns whose values are numbers, which are all of one size.
        size: Bytes of the file.
    """

    rows: int
    chunks: dict[str, list[tuple[int, int]]]
    numbers: frozenset[str]
    size: int

    @property
    def most(self) -> int:
        """Bytes that a column, or all of a table, may become."""
        return FLOOR + FACTOR * self.size


@contextmanager
def opened(path: Path, columns: Sequence[str]) -> Iterator["pq.ParquetFile"]:
    """Open a parquet file, once it is checked what it declares of `columns`.

    Args:
        path: The file.
        columns: Paths of the columns that will be read, as `img.bytes`; those that are not there are
            passed over.

    Raises:
        ValueError, OSError: With the reason, in one line; also for what goes wrong within the block.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    declared = read_footer(path)
    for column in columns:
        measure(path, declared, column)
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, RecursionError, MemoryError, OverflowError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(lines[0] if lines else type(error).__name__) from None


def read_footer(path: Path) -> Declared:
    """Read what a file declares, and check it against its size.

    Raises:
        ValueError, OSError: With the reason, in one line.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> path = Path(tempfile.mkdtemp()) / "x.parquet"
        >>> pq.write_table(pa.table({"label": [0, 1, 0]}), path)
        >>> read_footer(path).rows
        3
    """
    check_ordinary(path)
    with path.open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        raw.seek(max(0, size - 8))
        length, magic = int.from_bytes(raw.read(4), "little"), raw.read(4)
        if size < 12 or magic != _MAGIC or length > size - 12:
            raise ValueError("it has no footer")
        raw.seek(size - 8 - length)
        try:
            footer = Thrift(raw.read(length)).read_struct()
        except EOFError:
            raise ValueError("its footer has no end") from None
    rows, groups = _get(footer, 3, _I64), _get(footer, 4, _LIST)
    leaves = _list_leaves(_get(footer, 2, _LIST))
    paths = [column for column, _ in leaves]
    chunks: dict[str, list[tuple[int, int]]] = {column: [] for column in paths}
    total = 0
    for group in groups:
        inside, number = _get(group, 1, _LIST), _get(group, 3, _I64)
        total += number
        if len(inside) != len(paths) or not 0 <= number <= size:
            raise ValueError(f"it declares {number:,} rows of {len(inside)} columns")
        for column, chunk in zip(paths, inside, strict=True):
            chunks[column].append(_place(_get(chunk, 3, _STRUCT), size))
    # A row takes some bytes: nothing but the same value over and over takes less than one.
    if rows != total or rows > size:
        raise ValueError(f"it declares {rows:,} rows in {size:,} bytes")
    texts = {column for column, kind in leaves if kind not in _NUMBERS}
    return Declared(rows, chunks, frozenset(chunks.keys() - texts), size)


def measure(path: Path, declared: Declared, column: str) -> Column:
    """Read the headers of all pages of a column.

    Raises:
        ValueError: They declare more than a file of this size may become.
    """
    size, dictionary, plain = 0, 0, True
    with path.open("rb") as raw:
        for begin, end in declared.chunks.get(column, ()):
            for kind, unpacked, encoding in _pages(raw, begin, end):
                size += unpacked
                if size > declared.most:
                    raise ValueError(f"a column declares more than {declared.most:,} bytes")
                if kind == _DICTIONARY_PAGE:
                    dictionary = max(dictionary, unpacked)
                elif encoding not in _PLAIN:
                    plain = False
    if column in declared.numbers:
        return Column(size, 0)
    return Column(size, dictionary if plain else size)


def check_whole(path: Path) -> None:
    """Raise a `ValueError` if reading all columns at once could take more than the size allows.

    A text counts in every row with all of its dictionary, since more is not known of it.
    """
    declared = read_footer(path)
    total, most = 0, 4 * FLOOR + FACTOR * declared.size
    for name in declared.chunks:
        column = measure(path, declared, name)
        total += column.size + declared.rows * max(8, column.widest)
    if total > most:
        raise ValueError(f"it may take {total:,} bytes, expected at most {most:,}")


def _get(fields: Any, number: int, kind: int) -> Any:
    """Return a field of a structure, which has to be there."""
    if not isinstance(fields, dict) or (number, kind) not in fields:
        raise ValueError("its footer lacks what belongs there")
    return fields[number, kind]


def _list_leaves(elements: list[Any]) -> list[tuple[str, int]]:
    """Return path and kind of each column; the schema lists every node before what is below it."""
    leaves: list[tuple[str, int]] = []
    above: list[tuple[str, int]] = []  # a node's path, and how many below it are to come
    for place, element in enumerate(elements):
        name = _get(element, 4, _BINARY).decode()
        below = element.get((5, _I32), 0)
        if below < 0 or len(above) > _DEEPEST:
            raise ValueError("its schema cannot be read")
        if place == 0:
            above.append(("", below))
            continue
        while above and above[-1][1] == 0:
            above.pop()
        if not above:
            raise ValueError("its schema cannot be read")
        prefix, left = above.pop()
        above.append((prefix, left - 1))
        if below:
            above.append((f"{prefix}{name}.", below))
        else:
            leaves.append((prefix + name, element.get((1, _I32), -1)))
    if any(left for _, left in above):
        raise ValueError("its schema cannot be read")
    return leaves


def _place(chunk: Fields, size: int) -> tuple[int, int]:
    """Return where the pages of a column begin and end."""
    begin, length = _get(chunk, 9, _I64), _get(chunk, 7, _I64)
    dictionary = chunk.get((11, _I64), 0)
    if dictionary > 0:
        begin = min(begin, dictionary)
    values = _get(chunk, 5, _I64)
    if not 0 <= values <= size:
        raise ValueError("a column declares more values than the file has bytes")
    if begin < 0 or length < 0 or begin + length > size:
        raise ValueError("a column lies outside the file")
    return begin, begin + length if values else begin  # where there is no value, no page is read


def _pages(raw: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, unpacked size and encoding of each page."""
    while begin < end:
        fields, length = _read_header(raw, begin, end)
        unpacked, packed = _get(fields, 2, _I32), _get(fields, 3, _I32)
        if unpacked < 0 or packed < 0:
            raise ValueError("a page has no size")
        encodings = {  # of the two versions of pages
            _get(fields[place, _STRUCT], number, _I32)
            for place, number in ((5, 2), (8, 4))
            if (place, _STRUCT) in fields
        }
        yield _get(fields, 1, _I32), unpacked, max(encodings, default=-1)
        begin += length + packed


def _read_header(raw: BinaryIO, begin: int, end: int) -> tuple[Fields, int]:
    """Return a page's header, and its length."""
    for longest in _HEADERS:
        raw.seek(begin)
        header = Thrift(raw.read(min(longest, end - begin)))
        try:
            return header.read_struct(), header.place
        except EOFError:
            continue
    raise ValueError("a page's header has no end")


class Thrift:
    r"""Reads structures in Thrift's compact protocol: values by the number and the kind of their fields.

    Args:
        content: The bytes; reading on behind them is an `EOFError`, anything odd a `ValueError`.

    Attributes:
        place: How far it has read.

    Example:
        >>> Thrift(b"\x15\x06\x18\x02ab\x00").read_struct()
        {(1, 5): 3, (2, 8): b'ab'}
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0

    def read_struct(self, depth: int = 0) -> Fields:
        """Read a structure and all that is in it."""
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        found: Fields = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._whole()
            # true and false are in the head itself
            found[number, kind] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, _I32, _I64):
            return self._whole()
        if kind == 7:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, 10):
            return self._list(depth)
        if kind == _STRUCT:
            return self.read_struct(depth)
        raise ValueError("it holds what no parquet file holds")

    def _list(self, depth: int) -> list[Any]:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        head = self._byte()
        number = head >> 4 if head >> 4 < 15 else self._varint()
        if number > len(self._content) - self.place:  # an entry takes a byte at least
            raise EOFError
        return [self._value(head & 15, depth + 1) for _ in range(number)]

    def _byte(self) -> int:
        if self.place >= len(self._content):
            raise EOFError
        self.place += 1
        return self._content[self.place - 1]

    def _bytes(self, number: int) -> bytes:
        if number > len(self._content) - self.place:
            raise EOFError
        self.place += number
        return self._content[self.place - number : self.place]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number has no end")

    def _whole(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
