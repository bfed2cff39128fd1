"""The verbs that run experiments: demo and compare, each on something small."""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from aprune.experiments import questions
from aprune.experiments.comparison import Comparison, TaskChoice

SMALL = (
    *("compare", "--parent", "mlp", "--from", "digits", "--from-classes", "0,1", "--to", "digits"),
    *(
        "--classes",
        "5,6,7",
        "--images",
        30,
        "--methods",
        "ap,random,dense",
        "--sparsity",
        "0.5,0.9",
    ),
    *("--seeds", 2, "--steps", 5, "--search-steps", 10, "--lrs", "0.1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def compared(aprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    ended = aprune(*SMALL, "--out", out)
    assert (ended.status, ended.err) == (0, "")
    for word in ("sparsity", "accuracy", "random", "dense", str(out)):
        assert word in ended.out
    return out


def test_compare_writes_its_rows(compared: Path) -> None:
    rows = pd.read_parquet(compared / "rows.parquet")
    assert len(rows) == (2 + 2 + 1) * 2  # arms of ap, random and dense, times seeds
    assert set(rows["images"]) == {30}
    for name in ("table.md", "comparison.png", "comparison.pdf"):
        assert (compared / name).stat().st_size > 0


def test_compare_as_json_does_nothing_again(
    aprune: Callable[..., Any], compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aprune.experiments.run.search", lambda *_, **__: pytest.fail("again"))
    monkeypatch.setattr("aprune.bulk.prepare", lambda *_, **__: pytest.fail("again"))
    document = json.loads(aprune(*SMALL, "--out", compared, "--json").out)
    assert document["complete"] is True
    assert document["out"] == str(compared)
    rows = pd.read_parquet(compared / "rows.parquet")
    assert [row["accuracy"] for row in document["rows"]] == pytest.approx(rows["accuracy"].tolist())
    dense = [row for row in document["rows"] if row["method"] == "dense"]
    assert all(row["search_loss"] is None for row in dense)


def test_a_damaged_run_is_named_and_done_again(
    aprune: Callable[..., Any], compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(compared, out)
    path = sorted((out / "runs").iterdir())[0]
    path.write_bytes(path.read_bytes()[:30])
    done = aprune(*SMALL, "--out", out)
    assert done.status == 0
    assert done.err == f"aprune: {path} was damaged: its run was done again\n"
    assert (out / "rows.parquet").read_bytes() == (compared / "rows.parquet").read_bytes()


def test_compare_stops_in_time(aprune: Callable[..., Any], tmp_path: Path) -> None:
    short = ("--time-limit", 1e-9, "--out", tmp_path)
    ended = aprune(*SMALL, *short)
    assert ended.status == 0
    assert "No retraining is finished yet" in ended.out
    assert ended.err.count("\n") == 1
    assert "run the same command again" in ended.err
    document = json.loads(aprune(*SMALL, *short, "--json").out)
    assert (document["complete"], document["rows"]) == (False, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--methods", "ap,magic"), ["'magic'"]),
        (("--methods", "ap,ap"), ["each once"]),
        (("--sparsity", "1.2"), ["1.2", "below 1"]),
        (("--seeds", "0"), ["seeds"]),
        (("--lrs", "0"), ["lrs"]),
        (("--lrs", "fast"), ["'fast'", "--lrs"]),
        (("--mixups", "2"), ["mixups"]),
        (("--mixups", "none"), ["'none'", "--mixups"]),
        (("--steps", "0"), ["steps is 0"]),
        (("--search-steps", "-1"), ["steps is -1"]),
        (("--time-limit", "0"), ["--time-limit"]),
        (("--parent", "mpl"), ["'mpl'"]),
        (("--from", "digit"), ["'digit'"]),
        (("--to", "cifar10"), ["set APRUNE_DATA"]),
        (("--images", "99999"), ["99999", "at most"]),
        (("--from-classes", "0,,1"), ["--from-classes"]),
        (("--device", "abacus"), ["'abacus'"]),
        (("--onto", "mpl"), ["'mpl'"]),
        (("--set", "rounds=3"), ["'rounds=3'", "METHOD.NAME=VALUE"]),
        (("--set", "imp.rounds=3"), ["'imp.rounds=3'", "one of random"]),
        (("--set", "random.spread=thin"), ["'thin'"]),
        (("--preset", "tasks"), ["--preset", "leave out --parent"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_compare_refuses(
    aprune: Callable[..., Any],
    tmp_path: Path,
    list_tree: Any,
    options: tuple[str, str],
    words: list[str],
) -> None:
    # the search would come before the new task is looked at, if it were not for random
    given = (*SMALL, "--methods", "random", *options, "--out", tmp_path / "out")
    aprune(*given).assert_refused(*words)
    assert [path for path in list_tree() if path.suffix == ".parquet"] == []


def test_compare_needs_something_to_compare(aprune: Callable[..., Any]) -> None:
    aprune("compare", "--parent", "mlp").assert_refused("--from", "--preset")
    aprune("compare", "--preset", "tasks", "--steps", 5).assert_refused("leave out --steps")
    aprune("compare", "--preset", "life").assert_refused("'life'", "parents, tasks")
    aprune("compare", "--preset", "bare", "--scale", "tiny").assert_refused("'tiny'", "small")
    aprune(*SMALL, "--scale", "small").assert_refused("--scale is for a --preset")
    aprune("compare", "--preset", "parents").assert_refused("APRUNE_DATA")


def test_presets_have_a_folder_for_each_comparison(
    aprune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = TaskChoice("digits", classes=(0, 1), images=20)
    tiny = Comparison(
        "logistic", digits, digits, ("random",), (0.5,), (0,), lrs=(0.1,), retrain_steps=5
    )
    two = {"first": tiny, "second": replace(tiny, seeds=(0, 1))}
    monkeypatch.setattr(questions, "QUESTIONS", {"some": lambda setting: two})
    ended = aprune("compare", "--preset", "some", "--out", tmp_path)
    assert ended.status == 0
    assert ended.out.index("first") < ended.out.index("second")
    assert len(pd.read_parquet(tmp_path / "some" / "second" / "rows.parquet")) == 2
    assert len(list((tmp_path / "runs").glob("*.json"))) == 4  # what both need is done once
    document = json.loads(aprune("compare", "--preset", "some", "--out", tmp_path, "--json").out)
    assert [len(part["rows"]) for part in document.values()] == [1, 2]


def test_compare_where_nothing_can_be_written(aprune: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    aprune(*SMALL, "--out", tmp_path / "file" / "out").assert_refused("cannot write")
    aprune("demo", "--out", tmp_path / "file").assert_refused("cannot write")


def test_demo(aprune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from aprune.experiments.demo import SETTING, demo

    small = replace(
        SETTING, seeds=(0, 1), sparsities=(0.9,), methods=("ap", "random"), search_steps=10,
        retrain_steps=5,
    )  # fmt: skip
    monkeypatch.setattr("aprune.experiments.demo.SETTING", small)
    monkeypatch.setattr("aprune.experiments.demo.demo", functools.partial(demo, setting=small))
    ended = aprune("demo", "--out", tmp_path / "demo")
    assert (ended.status, ended.err) == (0, "")
    assert "digits 0,1,2,3,4" in ended.out
    assert "50 images of digits 5,6,7,8,9" in ended.out
    assert "At sparsity 0.9 AP's architectures reach" in ended.out
    assert str(tmp_path / "demo" / "comparison.png") in ended.out
    assert (tmp_path / "demo" / "comparison.png").is_file()
