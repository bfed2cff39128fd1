"""What is committed hangs together: every row of the paper's figures is of a run that is there too."""

import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from aprune.experiments import paper
from aprune.experiments.plan import Comparison, TaskChoice
from aprune.experiments.store import key_of

PAPER = Path(__file__).parents[2] / "results" / "paper"
ARM = ["method", "variant", "sparsity"]

Accuracies = dict[tuple[Any, ...], float]


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Read an archive of runs; each must have the name that its description gives it."""
    entries = []
    with tarfile.open(path) as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):
            file = archive.extractfile(member)
            assert file is not None
            entry = json.load(file)
            assert member.name == f"runs/{key_of(entry['description'])}.json"
            entries.append(entry)
    return entries


def identify(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells a retraining from others, as rows tell it too."""
    task, search = run["task"], run["search"]
    tuning = task.get("split") == "tuning" or "held_out" in task
    protocol = "paper" if run.get("init") == "normal" else "fair"
    method = search["method"]["name"] if search else "dense"
    variant = "reshuffled" if run.get("reshuffled") else ""
    which = (run["parent"], protocol, task["data"], task["images"], tuning)
    recipe = run["recipe"]
    return (*which, method, variant, run["sparsity"], run["seed"], recipe["lr"], recipe["steps"])


@pytest.fixture(scope="module")
def accuracies() -> Accuracies:
    """Accuracies of all committed retrainings."""
    known: Accuracies = {}
    for path in sorted(PAPER.glob("*-runs.tar.xz")):
        for entry in read_runs(path):
            if entry["description"]["kind"] == "transfer":
                key, accuracy = identify(entry["description"]), entry["result"]["accuracy"]
                assert key not in known
                known[key] = math.nan if accuracy is None else accuracy
    return known


def planned(path: Path) -> Comparison:
    """Return what the figure in this folder is to compare."""
    parent, _, protocol = path.parent.name.rpartition("-")
    scale = "small" if parent == "mlp" else "paper"
    return paper.plan(path.name, parent, protocol=protocol, scale=scale)  # type: ignore[arg-type]


def assert_among(
    rows: pd.DataFrame, plan: Comparison, task: TaskChoice, accuracies: Accuracies, *, tuning: bool
) -> None:
    which = (plan.parent, plan.protocol, task.name, task.images, tuning)
    for row in rows.itertuples():
        key = (*which, row.method, row.variant, row.sparsity, row.seed, row.lr, row.steps)
        assert accuracies[key] == pytest.approx(row.accuracy, abs=0, nan_ok=True)


FIGURES = [path.parent for path in sorted(PAPER.glob("*/figure*/rows.parquet"))]
# those of the mlp are done again in minutes on any machine
WITH_RUNS = [path for path in FIGURES if not path.parent.name.startswith("mlp-")]


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


each_figure = pytest.mark.parametrize("path", FIGURES, ids=name_of)
each_with_runs = pytest.mark.parametrize("path", WITH_RUNS, ids=name_of)


def test_there_is_something_to_look_at() -> None:
    assert len(WITH_RUNS) >= 3
    assert len(FIGURES) >= 15


@each_with_runs
def test_rows_are_of_runs_that_are_there(path: Path, accuracies: Accuracies) -> None:
    plan, rows = planned(path), pd.read_parquet(path / "rows.parquet")
    assert (rows[["figure", "parent", "protocol"]] == [path.name, plan.parent, plan.protocol]).all(
        axis=None
    )
    assert_among(rows, plan, plan.new_task, accuracies, tuning=False)


@each_with_runs
def test_rates_are_those_that_the_runs_for_tuning_speak_for(
    path: Path, accuracies: Accuracies
) -> None:
    plan, rows = planned(path), pd.read_parquet(path / "rows.parquet")
    if plan.protocol == "paper":
        assert rows["lr"].nunique() == 1
        return
    tried = pd.read_parquet(path / "tuning.parquet")
    assert_among(tried, plan, plan.tuning_task or plan.new_task, accuracies, tuning=True)
    best = tried.loc[tried.groupby(ARM)["accuracy"].idxmax()].set_index(ARM)["lr"]
    assert rows.groupby(ARM)["lr"].unique().map(list).to_dict() == best.map(lambda x: [x]).to_dict()


@pytest.mark.parametrize("parent", ["vgg19", "vgg19_bn"])
def test_densities_are_those_of_the_searches(parent: str) -> None:
    path = PAPER / f"{parent}-fair" / "figure5" / "densities.parquet"
    keys = ["method", "seed", "sparsity", "layer"]
    known = pd.read_parquet(path).set_index(keys)["density"].to_dict()
    searched = {}
    for entry in read_runs(PAPER / f"{parent}-runs.tar.xz"):
        about, result = entry["description"], entry["result"]
        if about["kind"] == "search":
            for sparsity, layers in zip(about["sparsities"], result["densities"], strict=True):
                for layer, density in layers.items():
                    searched[about["method"]["name"], about["seed"], sparsity, layer] = density
    assert len(known) == 3 * 5 * 7 * 19
    assert known == searched


@each_figure
def test_figures_are_whole(path: Path) -> None:
    plan, rows = planned(path), pd.read_parquet(path / "rows.parquet")
    expected = {(*arm, seed) for arm in plan.arms() for seed in plan.seeds}
    found = rows[["method", "sparsity", "variant", "seed"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(expected)
    assert rows["steps"].nunique() == 1  # the same budget for all


def test_pages_are_what_the_rows_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pictures differ from machine to machine
    monkeypatch.setattr(paper.style, "save", lambda *_: [])
    for draw in ("draw_accuracy", "draw_densities", "draw_table1"):
        monkeypatch.setattr(paper, draw, lambda _: None)
    monkeypatch.setattr(paper.figure1, "draw", lambda _: None)
    results = PAPER.parent
    first, densities = paper.read_convergence(results), paper.read_densities(results)
    paper.redraw(paper.read_rows(results), tmp_path, first, densities)
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.md")}
    # `table.md` is written by the comparison itself
    kept = {path.relative_to(PAPER) for path in PAPER.rglob("*.md") if path.name != "table.md"}
    assert set(pages) == kept
    for name, text in pages.items():
        assert text == (PAPER / name).read_text(), name
