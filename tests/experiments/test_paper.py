"""The paper's experiments: what is compared, what is shared, and what becomes of the rows."""

import dataclasses
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from aprune.errors import FileError, SettingError
from aprune.experiments import paper, retrain, run
from aprune.experiments.plan import Comparison, Plan, TaskChoice
from aprune.methods import IMP
from aprune.tasks import Augment
from aprune.training import choose_device

CPU = choose_device("cpu")


def tiny(figure: str, **changes: Any) -> Comparison:
    """Return a figure of the small scale that takes a second."""
    made = paper.plan(figure, "logistic", scale="small", seeds=1, sparsities=(0.5,))
    quick = {"search_steps": 12, "retrain_steps": 5, "lrs": (0.1,), "settings": (IMP(rounds=2),)}
    return dataclasses.replace(made, **(quick | changes))


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the searches that are really done, by method."""
    counter: Counter[str] = Counter()
    search = run.search

    def counted(*args: Any, **rest: Any) -> Any:
        counter[args[2].name] += 1
        return search(*args, **rest)

    monkeypatch.setattr(run, "search", counted)
    return counter


def test_the_grid_is_the_papers() -> None:
    images = {"figure2": 5_000, "figure3": 5_000, "figure4": 1_000}
    images |= {"figure5": 500, "figure6": 100, "figure7": 50}
    assert tuple(images) == paper.FIGURES
    for figure, number in images.items():
        made = paper.plan(figure, "vgg19")
        assert made.sparsities == (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
        assert made.seeds == (0, 1, 2, 3, 4)
        assert set(made.methods) == {"ap", "random", "imp", "dense"}
        assert made.search_task == TaskChoice("cifar10")
        assert made.new_task.images == number
        moved = (("ap", "reshuffled"), ("imp", "reshuffled"))
        assert made.also == (moved if figure == "figure5" else ())
    inside = paper.plan("figure2", "vgg19").new_task
    assert (inside.name, inside.split) == ("cifar10", "test")
    outside = paper.plan("figure6", "vgg19").new_task
    assert (outside.name, outside.classes, outside.split) == ("cifar100", 10, "train")


def test_parts_of_it_can_be_had() -> None:
    quick = paper.plan("figure5", "vgg19", budget="quick")
    assert len(quick.seeds) < 5
    assert len(quick.sparsities) < 7
    assert quick.search_steps is not None
    chosen = paper.plan("figure5", "vgg19", seeds=3, sparsities=[0.9], images=200)
    assert (chosen.seeds, chosen.sparsities, chosen.new_task.images) == ((0, 1, 2), (0.9,), 200)
    with pytest.raises(SettingError, match="unknown figure 'figure8': expected one of figure2"):
        paper.plan("figure8", "vgg19")


def test_the_papers_protocol_draws_and_trains_as_printed() -> None:
    for protocol, init, schedule in (("fair", "auto", "hold"), ("paper", "normal", "inverse_sqrt")):
        made = Plan(dataclasses.replace(tiny("figure5"), protocol=protocol, lrs=()), CPU)
        arm = next(iter(made.comparison.arms()))
        final = made.final(arm, 0, made.trials()[0])
        assert (final.init, final.recipe.schedule) == (init, schedule)
        assert ("init" in final.describe()) == (init == "normal")
        assert len(made.trials()) == (1 if protocol == "paper" else 3)
    with pytest.raises(SettingError, match="unknown protocol 'kind'"):
        tiny("figure5", protocol="kind")


def test_the_papers_protocol_gives_every_parent_the_same_steps() -> None:
    photographs = Augment(flip=True)
    steps = {}
    for protocol, parent in product(("fair", "paper"), ("conv", "conv_bn")):
        changes = {"protocol": protocol, "parent": parent, "retrain_steps": None, "lrs": ()}
        made = Plan(tiny("figure5", **changes), CPU)
        task = dataclasses.replace(made.comparison.new_task.load(0), augment=photographs)
        steps[protocol, parent] = made._recipe(task).steps
    assert steps["paper", "conv"] == steps["paper", "conv_bn"] == steps["fair", "conv_bn"]
    assert steps["fair", "conv"] > steps["fair", "conv_bn"]


def test_a_figure_with_twice_the_images_of_another_chooses_where_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale in ("paper", "small"):
        plans = {figure: paper.plan(figure, "mlp", scale=scale) for figure in paper.FIGURES}
        shares = {figure: plan.tuning_task for figure, plan in plans.items() if plan.tuning_task}
        assert shares == {
            "figure4": plans["figure5"].new_task,
            "figure6": plans["figure7"].new_task,
        }
    assert paper.plan("figure4", "mlp", images=70).tuning_task is None  # asked for by hand
    many = tiny("figure4", lrs=(0.1, 0.2), methods=("dense",))
    made, dense = Plan(many, CPU), next(iter(many.arms()))
    chosen, final = (
        {image.numpy().tobytes() for image in part.task.train_images}
        for part in (
            made.tuning(dense, 0, made.trials()[0]),
            made.final(dense, 0, made.trials()[0]),
        )
    )
    assert len(chosen) == 100  # table 1's
    assert chosen < final
    done: list[int] = []
    whole = retrain.transfer_many

    def counted(todo: Iterator[Any], **rest: Any) -> Iterator[Any]:
        done.append(0)
        for pair in whole(todo, **rest):
            done[-1] += 1
            yield pair

    monkeypatch.setattr(retrain, "transfer_many", counted)
    table = tiny("figure5", lrs=(0.1, 0.2), methods=("dense",), also=())
    paper.reproduce([table, many], tmp_path, device="cpu")
    assert [number for number in done if number] == [2, 1, 1]  # rates are tried once


def test_figures_share_searches_and_rows_can_be_drawn_again(
    tmp_path: Path, searches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = [tiny("figure2"), tiny("figure5"), tiny("figure5", protocol="paper")]
    frame = paper.reproduce(figures, tmp_path / "all", device="cpu")
    assert frame.attrs["complete"]
    assert searches == {"ap": 1, "random": 1, "imp": 1}
    counts = frame.groupby(["figure", "protocol", "reshuffled"]).size().to_dict()
    assert counts == {
        ("figure2", "fair", False): 4,
        ("figure5", "fair", False): 4,
        ("figure5", "fair", True): 2,
        ("figure5", "paper", False): 4,
        ("figure5", "paper", True): 2,
    }

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be trained")

    monkeypatch.setattr(retrain, "transfer_many", refuse)
    monkeypatch.setattr(run, "search", refuse)
    rows = paper.read_rows(tmp_path / "all")
    keys = ["protocol", "figure", "method", "reshuffled"]
    pd.testing.assert_frame_equal(
        rows.sort_values(keys, ignore_index=True), frame.sort_values(keys, ignore_index=True)
    )
    densities = paper.read_densities(tmp_path / "all")
    assert densities is not None
    assert set(densities["figure"]) == {"figure2", "figure5"}
    written = paper.redraw(rows, tmp_path / "again", densities=densities)
    names = {str(path.relative_to(tmp_path / "again")) for path in written}
    assert {name for name in names if name.endswith((".png", ".md"))} == {
        "claims.md",
        "logistic-fair/figure2.png",
        "logistic-fair/figure2.md",
        "logistic-fair/figure5.png",
        "logistic-fair/figure5.md",
        "logistic-fair/table1.png",
        "logistic-fair/densities.png",
        "logistic-fair/claims.md",
        "logistic-paper/figure5.png",
        "logistic-paper/figure5.md",
        "logistic-paper/table1.png",
        "logistic-paper/densities.png",
        "logistic-paper/claims.md",
    }
    assert all(path.stat().st_size > 0 for path in written)
    overview = (tmp_path / "again/claims.md").read_text()
    assert "[logistic-fair](logistic-fair/claims.md) | [logistic-paper]" in overview
    page = (tmp_path / "again/logistic-fair/claims.md").read_text()
    assert "each layer of figure 5 keeps: [densities](densities.png)" in page


def test_densities_of_different_searches_are_not_mixed(
    tmp_path: Path, searches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paper.reproduce([tiny("figure2", search_steps=8), tiny("figure5")], tmp_path, device="cpu")
    assert searches["ap"] == 2
    drawn = []
    monkeypatch.setattr(paper.style, "save", lambda *_: [])
    monkeypatch.setattr(paper, "draw_densities", drawn.append)
    paper.redraw(paper.read_rows(tmp_path), tmp_path, densities=paper.read_densities(tmp_path))
    (layers,) = drawn
    assert set(layers["figure"]) == {"figure5"}
    assert (layers.groupby(["method", "seed", "sparsity", "layer"]).size() == 1).all()


def test_rows_of_others_need_no_more_than_nine_columns(tmp_path: Path) -> None:
    columns = ["figure", "parent", "protocol", "method", "reshuffled", "sparsity", "images"]
    values = ["figure5", "vgg19", "fair", "ap", False, 0.9, 500]
    rows = [[*values, seed, 0.5 + seed / 100] for seed in range(4)]
    rows += [[*values[:3], "imp", *values[4:], 0, None], [*values, 4, 0.6]]
    pd.DataFrame(rows, columns=[*columns, "seed", "accuracy"]).to_parquet(tmp_path / "rows.parquet")
    paper.redraw(paper.read_rows(tmp_path), tmp_path / "drawn")
    table = (tmp_path / "drawn/vgg19-fair/figure5.md").read_text()
    # and no column of differences, as there is none
    assert "| 0.9 | AP | 0.532 ± 0.040 | 5 |\n" in table
    assert "| 0.9 | IMP | diverged | 0 (1 diverged) |\n" in table
    page = (tmp_path / "drawn/vgg19-fair/claims.md").read_text()
    assert "[figure 5](figure5.md)" in page
    assert paper.read_densities(tmp_path) is None
    assert "densities" not in page


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no rows of the paper's figures under"):
        paper.read_rows(tmp_path)
    (tmp_path / ".rows.parquet.0a1b.parquet").write_bytes(b"PAR1 left by a kill")
    with pytest.raises(FileError, match="no rows of the paper's figures under"):
        paper.read_rows(tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 half a file")
    with pytest.raises(FileError, match=r"rows\.parquet cannot be read as rows"):
        paper.read_rows(tmp_path)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from aprune.experiments import paper
from aprune.experiments.store import Store
from test_paper import tiny
put = Store.put
def note(self, description, result):
    print(description["kind"], flush=True)
    put(self, description, result)
Store.put = note
paper.reproduce([tiny("figure5"), tiny("figure6")], sys.argv[1], device="cpu", progress=False)
"""


def test_killed_again_and_again_it_gives_the_same_rows(tmp_path: Path) -> None:
    whole = paper.reproduce([tiny("figure5"), tiny("figure6")], tmp_path / "whole", device="cpu")
    place = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT, str(place), str(Path(__file__).parent)]
    for kept in (1, 4, 9):  # kills it as soon as so many runs are there
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(place.glob("runs/*.json"))) < kept:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    resumed = paper.reproduce([tiny("figure5"), tiny("figure6")], place, device="cpu")
    pd.testing.assert_frame_equal(resumed, whole)


def test_two_processes_on_one_store_share_its_runs(tmp_path: Path) -> None:
    whole = paper.reproduce([tiny("figure5"), tiny("figure6")], tmp_path / "whole", device="cpu")
    place = tmp_path / "shared"
    command = [sys.executable, "-c", SCRIPT, str(place), str(Path(__file__).parent)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    done = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(map(len, done)) == len(list(place.glob("runs/*.json")))  # each was done once
    assert not (place / "checkpoints").exists()
    shared = paper.reproduce([tiny("figure5"), tiny("figure6")], place, device="cpu")
    pd.testing.assert_frame_equal(shared, whole)
    assert shared.attrs["damaged"] == []
