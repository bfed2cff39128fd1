"""The run store: nothing is lost, nothing damaged is believed."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch

from aprune.architecture import Architecture
from aprune.errors import FileError, SettingError
from aprune.experiments.store import Store, key_of

RUN = {"method": "ap", "seed": 3, "recipe": {"steps": 5, "lr": 0.1}, "sparsities": [0.5, 0.9]}


def test_key_is_the_hash_of_the_canonical_json() -> None:
    canonical = '{"a":[1,2.5,null],"b":"x"}'
    expected = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    assert key_of({"b": "x", "a": (1, 2.5, None)}) == expected


@pytest.mark.parametrize(
    "change", [{"seed": 4}, {"recipe": {"steps": 5, "lr": 0.2}}, {"sparsities": [0.9, 0.5]}]
)
def test_any_change_is_another_run(tmp_path: Path, change: dict[str, object]) -> None:
    store = Store(tmp_path)
    store.put(RUN, {"accuracy": 0.5})
    assert key_of({**RUN, **change}) != key_of(RUN)
    assert store.get({**RUN, **change}) is None


def test_result_comes_back_beside_its_description(tmp_path: Path) -> None:
    result = {"accuracy": 0.1 + 0.2, "failed": None, "curve": [1, 2]}
    Store(tmp_path).put(RUN, result)
    assert Store(tmp_path).get(RUN) == result
    (path,) = (tmp_path / "runs").iterdir()
    assert path.name == f"{key_of(RUN)}.json"
    assert json.loads(path.read_text())["description"] == RUN


def test_every_truncated_file_counts_as_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RUN, {"accuracy": 0.25})
    (path,) = (tmp_path / "runs").iterdir()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert store.get(RUN) is None
    store.put(RUN, {"accuracy": 0.75})
    assert store.get(RUN) == {"accuracy": 0.75}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"description": {}}',
        b'{"result": {}, "checksum": 1, "description": {}}',
    ],
)
def test_foreign_file_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path)
    store.put(RUN, {"accuracy": 0.25})
    (path,) = (tmp_path / "runs").iterdir()
    path.write_bytes(content)
    assert store.get(RUN) is None


def test_changed_number_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RUN, {"accuracy": 0.25})
    (path,) = (tmp_path / "runs").iterdir()
    path.write_text(path.read_text().replace("0.25", "0.95"))
    assert store.get(RUN) is None


def test_file_under_the_name_of_another_run_counts_as_absent(tmp_path: Path) -> None:
    store, other = Store(tmp_path), {**RUN, "seed": 4}
    store.put(RUN, {"accuracy": 0.25})
    (path,) = (tmp_path / "runs").iterdir()
    path.rename(path.with_name(f"{key_of(other)}.json"))
    assert store.get(other) is None


@pytest.mark.parametrize("bad", [{"accuracy": math.nan}, {"tensor": torch.zeros(1)}])
def test_what_json_cannot_hold_is_refused_and_nothing_written(
    tmp_path: Path, bad: dict[str, object]
) -> None:
    with pytest.raises(SettingError):
        Store(tmp_path).put(RUN, bad)
    with pytest.raises(SettingError):
        Store(tmp_path).put(bad, {})
    assert list(tmp_path.iterdir()) == []


def test_architecture_comes_back_or_counts_as_absent(tmp_path: Path) -> None:
    store, arch = Store(tmp_path), Architecture({"a": torch.arange(20) < 7}, {"method": "ap"})
    assert store.get_architecture(RUN) is None
    store.put_architecture(RUN, arch)
    assert store.get_architecture(RUN) == arch
    (path,) = (tmp_path / "architectures").iterdir()
    assert path.name == f"{key_of(RUN)}.arch.safetensors"
    whole = path.read_bytes()
    other = {**RUN, "seed": 4}
    (path.parent / f"{key_of(other)}.arch.safetensors").write_bytes(whole)
    assert store.get_architecture(other) is None
    path.write_bytes(whole[:-1])
    assert store.get_architecture(RUN) is None


def test_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError):
        Store(tmp_path / "file").put(RUN, {})
    assert Store(tmp_path / "file").get(RUN) is None
