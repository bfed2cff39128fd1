"""Commands that want the same folder: none takes away what another has done or is at."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aprune.files import claimed

FIND = [
    "find",
    "--parent",
    "mlp",
    "--task",
    "digits",
    "--classes",
    "0,1,2",
    "--steps",
    "80",
    "--batch",
    "16",
    "--sparsity",
]
RETRAIN = [
    "transfer",
    "--dense",
    "--parent",
    "mlp",
    "--task",
    "digits",
    "--classes",
    "5,6,7",
    "--images",
    "30",
    "--steps",
    "60",
]


def states(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("checkpoints/*/*.safetensors")}


def test_who_starts_over_does_not_take_the_state_of_another(
    aprune: Callable[..., Any], stop: Any, tmp_path: Path
) -> None:
    find = (*FIND, "0.9", "--out", tmp_path)
    stop(21, *find)
    before = states(tmp_path)
    place = next(iter(before)).parent
    with claimed(place / "claim") as mine:  # as if it were still at it
        assert mine
        aprune(*find, "--fresh").assert_refused("another process is at the same work")
        assert (place / "claim").exists()
    assert states(tmp_path) == before
    assert len(before) == 2


@pytest.mark.parametrize("held", [False, True])
def test_other_sparsities_are_other_work(
    held: bool, aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    stop(21, *FIND, "0.9", "--out", tmp_path)
    before = states(tmp_path)
    claim = tmp_path / "elsewhere" / "claim" if not held else next(iter(before)).parent / "claim"
    with claimed(claim):
        assert aprune(*FIND, "0.5", "--out", tmp_path).status == 0
    assert states(tmp_path) == before
    steps.clear()
    assert aprune(*FIND, "0.9", "--out", tmp_path).status == 0
    assert len(steps) == 80 - 20


def test_retrainings_that_write_no_model_are_told_apart(
    aprune: Callable[..., Any], stop: Any, steps: list[int]
) -> None:
    cache = Path(os.environ["APRUNE_CACHE"])
    stop(21, *RETRAIN, "--lr", 0.05)
    before = states(cache)
    with claimed(next(iter(before)).parent / "claim"):
        assert aprune(*RETRAIN, "--lr", 0.02).status == 0
    assert states(cache) == before
    steps.clear()
    assert aprune(*RETRAIN, "--lr", 0.05).status == 0
    assert len(steps) == 60 - 20
    assert states(cache) == {}


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/mlp-digits-ap-0.9-seed0"])
def test_states_do_not_go_through_a_link(
    name: str, aprune: Callable[..., Any], tmp_path: Path
) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "out" / name
    elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    ended = aprune(*FIND, "0.9", "--out", tmp_path / "out")
    ended.assert_refused("is a link, expected a folder")
    assert list(elsewhere.iterdir()) == []
