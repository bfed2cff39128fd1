import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from aprune.files import cache_folder
from aprune.tasks import Task, load_task

Made = tuple[Path, dict[str, np.ndarray]]


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("decoded although it is in the cache")

    monkeypatch.setattr("aprune.tasks.parquet.decode_images", refuse)
    monkeypatch.setattr("aprune.tasks.folder.decode_images", refuse)


def assert_same(one: Task, two: Task) -> None:
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(one, field), getattr(two, field)), field
    assert (one.name, one.classes, one.augment) == (two.name, two.classes, two.augment)
    assert one.provenance == two.provenance


def test_the_second_time_nothing_is_decoded(
    made: Made, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_task("cifar100")
    (file,) = sealed.iterdir()
    with safe_open(file, framework="pt") as kept:
        assert kept.metadata()["checksum"] == first.provenance["checksum"]
    forbid_decoding(monkeypatch)
    assert_same(first, load_task("cifar100"))


def test_a_folder_is_cached_for_each_size(
    write_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_folder({f"{c}/{i}.png": (9, 9, (i, 0, 0)) for c in "ab" for i in range(3)})
    tasks = {size: load_task(f"folder:{root}", size=size) for size in (4, 8)}
    forbid_decoding(monkeypatch)
    for size, task in tasks.items():
        assert_same(task, load_task(f"folder:{root}", size=size))
        assert task.shape == (3, size, size)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip_last_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def replace_by_rubbish(file: Path) -> None:
    file.write_bytes(b"\xff" * 500)


def make_older(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"format":"1"', b'"format":"0"'))


@pytest.mark.parametrize("damage", [cut, empty, flip_last_bit, replace_by_rubbish, make_older])
def test_a_damaged_cache_is_remade(
    made: Made, sealed: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_task("cifar100")
    (file,) = sealed.iterdir()
    good = file.read_bytes()
    damage(file)
    assert file.read_bytes() != good
    assert_same(first, load_task("cifar100"))
    assert list(sealed.iterdir()) == [file]
    forbid_decoding(monkeypatch)
    assert_same(first, load_task("cifar100"))


def test_changed_sources_are_read_again(
    made: Made, sealed: Path, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    before = load_task("cifar100")
    path = folder / "test-00000-of-00001.parquet"
    write_shard(path, [encode(np.full((4, 4, 3), 9, np.uint8))] * 2, [2, 0])
    after = load_task("cifar100")
    assert after.test_labels.tolist() == [1, 0]
    assert after.test_images.unique().tolist() == [9]
    assert before.provenance["checksum"] != after.provenance["checksum"]
    assert len(list(sealed.iterdir())) == 1


def test_the_time_of_a_source_counts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = made
    load_task("cifar100")
    forbid_decoding(monkeypatch)
    load_task("cifar100")
    os.utime(folder / "test-00000-of-00001.parquet", ns=(1, 1))
    with pytest.raises(AssertionError, match="decoded"):
        load_task("cifar100")


def test_a_cache_that_cannot_be_written_is_no_error(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("APRUNE_CACHE", str(tmp_path / "file" / "cache"))
    assert_same(load_task("cifar100"), load_task("cifar100"))


def test_a_full_disk_is_no_error(made: Made, sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    assert load_task("cifar100").num_classes == 2
    assert list(sealed.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APRUNE_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.setenv("APRUNE_CACHE", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/aprune")


def rewritten(**notes: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with safe_open(file, framework="pt") as kept:
            old = kept.metadata()
            tensors = {name: kept.get_tensor(name).clone() for name in kept.keys()}  # noqa: SIM118
        save_file(tensors, file, metadata={**old, **notes})

    return damage


def label_too_large(file: Path) -> None:
    """With a checksum that is right, as a stranger would write it."""
    with safe_open(file, framework="pt") as kept:
        notes = kept.metadata()
        tensors = {name: kept.get_tensor(name).clone() for name in kept.keys()}  # noqa: SIM118
    for part in ("train_labels", "test_labels"):
        tensors[part][tensors[part] == 2] = 10**15
    digest = hashlib.sha256()
    for part in ("train", "test"):
        images, labels = tensors[f"{part}_images"], tensors[f"{part}_labels"]
        digest.update(str(tuple(images.shape)).encode())
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
    save_file(tensors, file, metadata={**notes, "checksum": digest.hexdigest()})


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "damage",
    [
        rewritten(classes="[" * 100_000),
        rewritten(classes='"abcd"'),
        rewritten(classes="[1, 2, 3, 4]"),
        rewritten(augment="[]"),
        rewritten(augment='{"flip": 1, "shift": 4}'),
        rewritten(augment='{"flip": true, "shift": 1e9}'),
        rewritten(augment='{"flip": true, "shift": 1000000000}'),
        label_too_large,
        pipe,
    ],
)
def test_a_cache_that_a_stranger_wrote_is_remade(
    made: Made, sealed: Path, damage: Callable[[Path], None]
) -> None:
    first = load_task("cifar100")
    (file,) = sealed.iterdir()
    good = file.read_bytes()
    damage(file)
    assert_same(first, load_task("cifar100"))
    assert len(file.read_bytes()) == len(good)
