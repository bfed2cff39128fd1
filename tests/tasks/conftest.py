"""Small data sets made on the spot, a cache of their own, and no network."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from aprune.tasks.dataset import DataSet
from aprune.tasks.task import Augment


@pytest.fixture(autouse=True)
def sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data, no network, a fresh cache; gives the cache folder."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConnectionError("no network in tests\nand a second line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    monkeypatch.delenv("APRUNE_DATA", raising=False)
    monkeypatch.setenv("APRUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def encode() -> Callable[..., bytes]:
    def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, kind, lossless=True)
        return stream.getvalue()

    return encode


@pytest.fixture
def write_shard() -> Callable[..., Path]:
    def write(
        path: Path,
        blobs: Sequence[bytes | None],
        labels: Sequence[Any],
        *,
        names: Sequence[str] | None = ("ant", "bee", "cow", "dog"),
        columns: tuple[str, str] = ("img", "fine_label"),
        plain: bool = False,
    ) -> Path:
        images = (
            pa.array(blobs, pa.binary())
            if plain
            else pa.array(
                [{"bytes": blob, "path": None} for blob in blobs],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            )
        )
        table = pa.table({columns[0]: images, columns[1]: pa.array(labels)})
        if names is not None:
            info = {"info": {"features": {columns[1]: {"names": list(names)}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return path

    return write


@pytest.fixture
def made(
    tmp_path: Path,
    encode: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, dict[str, np.ndarray]]:
    """A "cifar100" of 4 × 4 pixels with images of classes 0 and 2 only; gives folder and pixels."""
    folder = tmp_path / "data" / "cifar100" / "cifar100"
    generator = np.random.default_rng(0)
    pixels = {
        part: generator.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
        for part, count in (("train", 12), ("test", 6))
    }
    blobs = [encode(image, "WEBP") for image in pixels["train"]]
    # Written last to first, so that only sorting by name gets the order right.
    write_shard(folder / "train-00001-of-00002.parquet", blobs[5:], [2, 0, 2, 0, 2, 0, 2])
    write_shard(folder / "train-00000-of-00002.parquet", blobs[:5], [0, 2, 0, 2, 0])
    tests = [encode(image) for image in pixels["test"]]
    write_shard(folder / "test-00000-of-00001.parquet", tests, [0, 0, 2, 2, 0, 2])
    monkeypatch.setenv("APRUNE_DATA", str(tmp_path / "data"))
    return folder, pixels


@pytest.fixture
def numbered() -> Callable[..., DataSet]:
    """Data whose pixels tell (label, index), so that every choice can be traced."""

    def make(counts: Sequence[int], tests: int = 3) -> DataSet:
        def part(sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
            labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
            labels = labels[torch.randperm(len(labels), generator=torch.manual_seed(0))]
            images = torch.zeros(len(labels), 2, 1, 2, dtype=torch.uint8)
            images[:, 0, 0, 0] = labels.to(torch.uint8)
            images[:, 0, 0, 1] = (torch.arange(len(labels)) // 256).to(torch.uint8)
            images[:, 1, 0, 0] = (torch.arange(len(labels)) % 256).to(torch.uint8)
            return images, labels

        names = tuple(f"class {label}" for label in range(len(counts)))
        present = [tests if count else 0 for count in counts]
        return DataSet("numbered", *part(counts), *part(present), names, Augment(True, 1))

    return make


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write `{"class/file.png": (width, height, colour)}` below a new folder."""

    def write(files: dict[str, tuple[int, int, tuple[int, int, int]]]) -> Path:
        root = tmp_path / "pictures"
        for name, (width, height, colour) in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (width, height), colour).save(root / name)
        return root

    return write
