import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from aprune.errors import TaskError
from aprune.tasks import Augment, load_task
from aprune.tasks.library import KNOWN
from aprune.tasks.parquet import find_shards, read_class_names, read_parquet

Made = tuple[Path, dict[str, np.ndarray]]
CIFAR100 = KNOWN["cifar100"]


def test_pixels_labels_and_names_come_through(made: Made) -> None:
    _, pixels = made
    task = load_task("cifar100")
    assert torch.equal(task.train_images, torch.from_numpy(pixels["train"]).permute(0, 3, 1, 2))
    assert torch.equal(task.test_images, torch.from_numpy(pixels["test"]).permute(0, 3, 1, 2))
    assert task.train_labels.tolist() == [0, 1] * 6
    assert task.test_labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert task.classes == ("ant", "cow")
    assert task.augment == Augment(flip=True, shift=4)
    assert task.provenance["classes"] == [0, 2]


def test_grey_images(
    tmp_path: Path,
    encode: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3)
    blobs = [encode(image) for image in pixels]
    for part in ("train", "test"):
        write_shard(
            tmp_path / f"mnist/mnist/{part}-00000-of-00001.parquet",
            blobs,
            [0, 1, 0, 1],
            columns=("image", "label"),
            names=None,
            plain=True,
        )
    monkeypatch.setenv("APRUNE_DATA", str(tmp_path))
    task = load_task("mnist")
    assert torch.equal(task.train_images[:, 0], torch.from_numpy(pixels))
    assert task.classes == ("0", "1")
    assert task.augment == Augment(flip=False, shift=2)


def make_png(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds almost nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


GOOD = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"no image", "cannot be read"),
        (b"", "cannot be read"),
        (None, "the image is missing"),
        (make_png(8001, 8000), "8001 × 8000 pixels are too many"),
        (make_png(10_000, 10_000), "exceeds limit"),
        (make_png(100_000, 100_000), "exceeds limit"),
        (make_png(4, 4)[:-30], "cannot be read"),
        ("wide", "has 5 × 4 pixels where the first one has 4 × 4"),
    ],
)
def test_a_bad_image_is_named_by_file_and_row(
    made: Made,
    encode: Callable[..., bytes],
    write_shard: Callable[..., Path],
    blob: Any,
    message: str,
) -> None:
    folder, _ = made
    if blob == "wide":
        blob = encode(np.zeros((4, 5, 3), np.uint8))
    good = encode(GOOD)
    write_shard(folder / "train-00001-of-00002.parquet", [good, good, blob, good], [0, 2, 0, 2])
    with pytest.raises(
        TaskError, match=f"train-00001-of-00002.parquet, row 2: .*{message}"
    ) as caught:
        load_task("cifar100")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2, 4], "row 2: got label 4; the file names 4 classes, so expected 0 … 3"),
        ([0, -1, 2], "row 1: got label -1"),
        ([0, None, 2], "row 1: the label is missing"),
        ([0.0, 1.0, 2.0], "holds double; expected whole numbers"),
        (["a", "b", "c"], "holds string; expected whole numbers"),
    ],
)
def test_a_bad_label_is_named_by_file_and_row(
    made: Made,
    encode: Callable[..., bytes],
    write_shard: Callable[..., Path],
    labels: list[Any],
    message: str,
) -> None:
    folder, _ = made
    write_shard(folder / "test-00000-of-00001.parquet", [encode(GOOD)] * 3, labels)
    with pytest.raises(TaskError, match=f"test-00000-of-00001.parquet.*{message}"):
        load_task("cifar100")


def test_wrong_columns(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    path = folder / "test-00000-of-00001.parquet"
    write_shard(path, [encode(GOOD)], [0], columns=("picture", "fine_label"))
    with pytest.raises(TaskError, match="columns picture, fine_label; expected img and fine_label"):
        load_task("cifar100")


def test_an_image_column_of_another_kind(made: Made, write_shard: Callable[..., Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, _ = made
    pq.write_table(pa.table({"img": [1, 2], "fine_label": [0, 2]}), folder / "test-0.parquet")
    (folder / "test-00000-of-00001.parquet").unlink()
    for shard in folder.glob("train-*"):
        shard.unlink()
    pq.write_table(pa.table({"img": [1, 2], "fine_label": [0, 2]}), folder / "train-0.parquet")
    with pytest.raises(TaskError, match="image column holds int64; expected encoded images"):
        load_task("cifar100")


def test_a_file_that_is_no_parquet(made: Made) -> None:
    folder, _ = made
    whole = (folder / "train-00000-of-00002.parquet").read_bytes()
    for content in (b"", b"rubbish", whole[: len(whole) // 2], whole[:4] + b"\xff" * len(whole)):
        (folder / "train-00000-of-00002.parquet").write_bytes(content)
        with pytest.raises(TaskError, match="cannot be read as parquet") as caught:
            load_task("cifar100")
        assert "\n" not in str(caught.value)


def test_missing_and_mixed_shards(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    write_shard(folder / "train-00000-of-00001.parquet", [encode(GOOD)], [0])
    with pytest.raises(TaskError, match="mixes train files of 2 different downloads"):
        find_shards(folder, "train")
    (folder / "train-00000-of-00001.parquet").unlink()
    (folder / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(TaskError, match="lacks 1 of 2 train files, the first of them number 0"):
        find_shards(folder, "train")
    (folder / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(TaskError, match=r"no train-\*.parquet"):
        read_parquet(CIFAR100, folder)


def test_shards_that_do_not_belong_together(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    path = folder / "test-00000-of-00001.parquet"
    write_shard(path, [encode(GOOD)], [0], names=("x", "y", "z"))
    with pytest.raises(TaskError, match="names other classes than train-00000"):
        read_parquet(CIFAR100, folder)
    write_shard(path, [encode(GOOD)] * 2, [0, 1])
    with pytest.raises(TaskError, match="class bee of cifar100 is only in one of"):
        read_parquet(CIFAR100, folder)
    write_shard(path, [encode(np.zeros((5, 5, 3), np.uint8))] * 2, [0, 2])
    with pytest.raises(TaskError, match=r"shape \(3, 4, 4\) and test images of shape \(3, 5, 5\)"):
        read_parquet(CIFAR100, folder)
    write_shard(path, [], np.array([], np.int64))
    with pytest.raises(TaskError, match="holds no image"):
        read_parquet(CIFAR100, folder)


@pytest.mark.parametrize("total", ["99999999999", "9" * 200])
def test_a_name_may_claim_any_number_of_files(made: Made, total: str) -> None:
    folder, _ = made
    (folder / "test-00000-of-00001.parquet").rename(folder / f"test-00000-of-{total}.parquet")
    with pytest.raises(TaskError, match=r"lacks 9+8 of 9+ test files, the first of them number 1;"):
        read_parquet(CIFAR100, folder)


def test_what_is_no_ordinary_file_is_refused(made: Made) -> None:
    folder, _ = made
    path = folder / "test-00000-of-00001.parquet"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TaskError, match="no ordinary file"):
        read_parquet(CIFAR100, folder)


def test_class_names_nested_without_end_are_none(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    path = folder / "test-00000-of-00001.parquet"
    table = pq.read_table(path).replace_schema_metadata({"huggingface": "[" * 100_000})
    pq.write_table(table, path)
    assert read_class_names(CIFAR100, path) == tuple(str(n) for n in range(100))


def test_one_image_in_very_many_rows_is_refused(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    blob = encode(np.zeros((900, 900, 3), np.uint8))
    path = write_shard(folder / "test-00000-of-00001.parquet", [blob] * 4_000, [0, 2] * 2_000)
    assert path.stat().st_size < 40_000
    with pytest.raises(TaskError, match="4000 images of 900 × 900 pixels do not fit into"):
        read_parquet(CIFAR100, folder)


def test_images_that_share_their_bytes_are_read_in_small_batches(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, pixels = made
    blobs = [encode(image) + bytes(1_000_000) for image in pixels["test"]]
    write_shard(folder / "test-00000-of-00001.parquet", blobs, [0, 0, 2, 2, 0, 2])
    data = read_parquet(CIFAR100, folder)
    assert torch.equal(data.test_images, torch.from_numpy(pixels["test"]).permute(0, 3, 1, 2))
