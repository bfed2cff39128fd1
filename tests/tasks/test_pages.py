"""What parquet files declare: read as pyarrow reads it, and refused if it is absurd."""

import os
import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aprune.tasks.pages import FACTOR, FLOOR, Thrift, check_whole, measure, opened, read_footer

TABLE = pa.table(
    {
        "img": pa.array([{"bytes": b"abc" * n, "path": None} for n in range(300)]),
        "label": pa.array([n % 7 for n in range(300)]),
        "deep": pa.array([[{"x": [n], "y": {"z": "t"}}] for n in range(300)]),
    }
)


def write(path: Path, table: pa.Table = TABLE, **more: Any) -> Path:
    pq.write_table(table, path, **more)
    return path


@pytest.mark.parametrize("compression", ["none", "zstd", "gzip", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_footer_says_what_pyarrow_says(
    tmp_path: Path, compression: str, version: str, dictionary: bool
) -> None:
    path = write(
        tmp_path / "x",
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        row_group_size=130,
        data_page_size=100,
    )
    declared, theirs = read_footer(path), pq.ParquetFile(path)
    assert declared.rows == 300
    assert declared.size == path.stat().st_size
    assert list(declared.chunks) == [theirs.schema.column(n).path for n in range(5)]
    for place, column in enumerate(declared.chunks):
        chunks = [theirs.metadata.row_group(n).column(place) for n in range(3)]
        ends = [end - begin for begin, end in declared.chunks[column]]
        assert ends == [chunk.total_compressed_size for chunk in chunks]
        # pyarrow counts the headers of the pages as well
        size = measure(path, declared, column).size
        total = sum(chunk.total_uncompressed_size for chunk in chunks)
        assert 0 < size < total
        if column == "img.bytes" and not dictionary:
            assert size > sum(3 * n for n in range(300)) + 4 * 300


def test_what_is_stored_once_and_stands_in_many_rows(tmp_path: Path) -> None:
    numbers = write(tmp_path / "numbers", pa.table({"a": [n % 20 / 7 for n in range(500)]}))
    assert measure(numbers, read_footer(numbers), "a").widest == 0
    table = pa.table({"a": [b"x" * 1000] * 50})
    plain = write(tmp_path / "plain", table, use_dictionary=False)
    assert measure(plain, read_footer(plain), "a").widest == 0
    shared = write(tmp_path / "shared", table)
    assert measure(shared, read_footer(shared), "a").widest == 1004  # with its length
    delta = write(
        tmp_path / "delta",
        table,
        use_dictionary=False,
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
    )
    column = measure(delta, read_footer(delta), "a")
    assert column.widest == column.size > 1000


def test_a_page_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": [bytes(FLOOR + 10_000_000)]})
    path = write(tmp_path / "bomb", table, use_dictionary=False, compression="zstd")
    assert path.stat().st_size < 10_000
    with (
        pytest.raises(ValueError, match=r"a column declares more than 1[67],"),
        opened(path, ["a"]),
    ):
        pass
    with opened(path, ["b"]):  # nothing of it will be read
        pass
    large = write(tmp_path / "large", pa.table({"a": [os.urandom(FLOOR)]}), use_dictionary=False)
    assert measure(large, read_footer(large), "a").size < FLOOR + FACTOR * large.stat().st_size


def test_one_value_in_many_rows_is_refused_as_a_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "x", pa.table({"a": [bytes(100_000)] * 1000}))
    with pytest.raises(ValueError, match="it may take 100,"):
        check_whole(path)
    check_whole(write(tmp_path / "y"))


def test_rows_that_take_no_room_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x", pa.table({"a": [0] * 1_000_000}))
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"it declares 1,000,000 rows"):
        read_footer(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100])
def test_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="it has no footer"):
        read_footer(tmp_path / "x")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(OSError, match="no ordinary file"):
        read_footer(tmp_path / "x")


def test_any_footer_is_read_or_refused(tmp_path: Path) -> None:
    content, rng, path = write(tmp_path / "x").read_bytes(), random.Random(0), tmp_path / "x"
    (size,) = struct.unpack("<I", content[-8:-4])
    reasons: set[str] = set()
    for _ in range(2000):
        changed = bytearray(content)
        place = rng.randrange(len(content) - 8 - size, len(content) - 8)
        changed[place] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            declared = read_footer(path)
            for column in declared.chunks:
                measure(path, declared, column)
        except ValueError as error:
            reasons.add(str(error))
    assert all(reason.isprintable() for reason in reasons)
    assert len(reasons) > 8


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", EOFError),
        (b"\x15", EOFError),
        (b"\x18\x7fab", EOFError),
        (b"\x15" + b"\xff" * 20, ValueError),
        (b"\x1c" * 100, ValueError),
        (b"\x19\x19" * 100, ValueError),
        (b"\x19\xfc\xff\xff\xff\x7f", EOFError),
        (b"\x1b\x00", ValueError),
    ],
)
def test_thrift_that_is_none(content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Thrift(content).read_struct()
