"""The run store: nothing is lost, nothing damaged is believed."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from aprune.architecture import Architecture
from aprune.errors import FileError, SettingError
from aprune.experiments.rows import read_rows
from aprune.experiments.store import Store, key_of
from aprune.training.checkpoint import remove_checkpoint

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


SEARCH = {"kind": "search", "sparsities": [0.5, 0.9]}
TRANSFER = {"kind": "transfer"}
FOUND = {"failed": None, "steps": 9, "loss": 0.5, "accuracy": None}
FOUND |= {"connections": [5, 1], "empty_layers": [0, 1], "densities": [{"a": 0.5}, {"a": 0.1}]}
RETRAINED = {"failed": "diverged", "accuracy": None, "train_loss": 0.25}


@pytest.mark.parametrize(
    ("run", "result", "change"),
    [
        (SEARCH, FOUND, {"failed": 3}),
        (SEARCH, FOUND, {"steps": -1}),
        (SEARCH, FOUND, {"steps": 1.5}),
        (SEARCH, FOUND, {"loss": "low"}),
        (SEARCH, FOUND, {"accuracy": True}),
        (SEARCH, FOUND, {"connections": [5]}),
        (SEARCH, FOUND, {"connections": [5, 10**30]}),
        (SEARCH, FOUND, {"empty_layers": None}),
        (SEARCH, FOUND, {"densities": [[]]}),
        (SEARCH, FOUND, {"densities": [{"a": "b"}]}),
        (SEARCH, FOUND, {"densities": {}}),
        (SEARCH, FOUND, {"device": "\ud800"}),
        (TRANSFER, RETRAINED, {"failed": []}),
        (TRANSFER, RETRAINED, {"accuracy": "high"}),
        (TRANSFER, RETRAINED, {"train_loss": 10**400}),
    ],
)
def test_result_that_no_run_has_counts_as_absent(
    tmp_path: Path, run: dict[str, object], result: dict[str, object], change: dict[str, object]
) -> None:
    store = Store(tmp_path)
    store.put(run, result)
    assert store.get(run) == result
    store.put(run, {**result, **change})  # with a checksum that is right
    assert store.get(run) is None
    for name in set(result) - {"densities"}:
        store.put(run, {key: value for key, value in result.items() if key != name})
        assert store.get(run) is None, name
    assert store.damaged == [tmp_path / "runs" / f"{key_of(run)}.json"]


@pytest.mark.parametrize("name", ["runs", "architectures", "networks"])
def test_nothing_goes_through_a_link_to_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).symlink_to(tmp_path / "elsewhere")
    store = Store(tmp_path / "store")
    arch = Architecture({"a": torch.arange(20) < 7})
    uses: dict[str, list[Callable[[], object]]] = {
        "runs": [lambda: store.get(RUN), lambda: store.put(RUN, {})],
        "architectures": [
            lambda: store.get_architecture(RUN),
            lambda: store.put_architecture(RUN, arch),
        ],
        "networks": [lambda: store.get_network(RUN, "mlp")],
    }
    for use in uses[name]:
        with pytest.raises(FileError, match=f"{name} is a link, expected a folder"):
            use()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    # the whole folder may be one: that is for its owner to say
    (tmp_path / "other").symlink_to(tmp_path / "elsewhere")
    Store(tmp_path / "other").put(RUN, {})
    assert Store(tmp_path / "elsewhere").get(RUN) == {}


@pytest.mark.parametrize("name", ["checkpoints", f"checkpoints/{key_of(RUN)}"])
def test_states_do_not_go_through_a_link_either(tmp_path: Path, name: str) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "store" / name
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("as it was")
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    store = Store(tmp_path / "store")
    for use in (lambda: store.checkpoint(RUN), lambda: store.claim(RUN)):
        with pytest.raises(FileError, match="is a link, expected a folder"):
            use()
    remove_checkpoint(link)
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


def test_what_a_killed_run_left_goes_when_its_result_is_looked_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RUN, {"accuracy": 0.5})
    place = store.checkpoint(RUN)
    place.mkdir(parents=True)
    for name in ("claim", "state.safetensors", ".state.safetensors.part-abcdefgh.safetensors"):
        (place / name).write_text("left behind")
    with store.claim(RUN) as mine:  # somebody does it once more
        assert mine
        assert Store(tmp_path).get(RUN) == {"accuracy": 0.5}
        assert len(list(place.iterdir())) == 3
    assert store.get(RUN) == {"accuracy": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("as it was")
    store = Store(tmp_path / "store")
    store.put(RUN, {})
    (path,) = (tmp_path / "store" / "runs").iterdir()
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    assert store.get(RUN) is None
    store.put(RUN, {"accuracy": 0.5})
    assert (tmp_path / "precious").read_text() == "as it was"
    assert store.get(RUN) == {"accuracy": 0.5}


def test_pipe_counts_as_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs" / f"{key_of(RUN)}.json")
    assert store.get(RUN) is None
    assert len(store.damaged) == 1


def test_rows_that_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    good = pa.table({"seed": [0, 1], "method": ["ap", "imp"]})
    pq.write_table(good, path)
    assert read_rows(path).to_dict("list") == {"seed": [0, 1], "method": ["ap", "imp"]}
    cut = path.read_bytes()[:-9]
    pq.write_table(good.replace_schema_metadata({"pandas": "[" * 10_000}), path)
    for content in (path.read_bytes(), cut, b""):
        path.write_bytes(content)
        with pytest.raises(FileError, match="cannot be read as rows") as caught:
            read_rows(path)
        assert str(caught.value).isprintable()
    # one text of a megabyte that stands in every row
    pq.write_table(pa.table({"a": ["x" * 1_000_000] * 1_000}), path)
    assert path.stat().st_size < 200_000
    with pytest.raises(FileError, match="it may take 1,00"):
        read_rows(path)
