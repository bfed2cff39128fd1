"""Which t_s: each cell against the functions that it calls, the tables, the files, and the rule."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import aprune as ap
from aprune.cli import main
from aprune.errors import FileError, SettingError
from aprune.experiments import temperature_case, temperature_figure
from aprune.experiments import temperatures as module
from aprune.experiments.convergence import Setting, descend
from aprune.experiments.temperature_case import (
    CASES,
    Run,
    measure_logistic,
    measure_network,
    measure_quadratic,
)
from aprune.experiments.temperature_figure import draw_best, draw_steps, tune
from aprune.experiments.temperatures import tabulate, temperatures
from aprune.finding import search

CELL = {"t_l": 1000.0, "t_s": 10.0, "step": 2.0, "penalty": 0.01}


def test_a_cell_of_digits_is_a_run_of_figure_1() -> None:
    task = ap.load_task("digits", classes=[0, 1])
    pixels, labels = task.train_images.flatten(1).float() / 255, task.train_labels.float()
    setting = Setting(step=6.0, penalty=0.02)
    frame = descend(
        pixels, labels, t_l=500.0, t_s=[20.0], seeds=[0, 1], iterations=40, setting=setting
    )
    last = frame[frame["iteration"] == 40]
    cell = {"t_l": 500.0, "t_s": 20.0, "step": 6.0, "penalty": 0.02}
    runs = measure_logistic(data="digits", **cell, seeds=[0, 1], iterations=40)
    assert [run.objective for run in runs] == pytest.approx(last["objective"].tolist())
    assert [run.active for run in runs] == last["active"].tolist()


def test_a_step_of_w_alone_leaves_that_of_theta() -> None:
    at = {"data": "digits", "seeds": [0], "iterations": 30}
    shared = measure_logistic(**CELL, **at)  # type: ignore[arg-type]
    assert measure_logistic(**CELL, **at, alone=True) == shared  # type: ignore[arg-type]
    # With next to no step of w all connections stay, and only θ learns: as in figure 1 if alone.
    still = {**CELL, "step": 1e-6}
    (alone,) = measure_logistic(**still, **at, alone=True)  # type: ignore[arg-type]
    (both,) = measure_logistic(**still, **at)  # type: ignore[arg-type]
    assert alone.active == both.active == 64
    assert both.objective == pytest.approx(math.log(2) + 0.64, abs=0.05)
    assert alone.objective < both.objective - 0.1


def test_eight_is_where_the_drift_and_the_price_agree() -> None:
    """What the rule says of t_l and γ, on digits: too small a t_s prunes more, and t_l is nothing."""
    at = {"data": "digits", "seeds": range(3), "iterations": 400}

    def ends(**changed: float) -> tuple[float, float]:
        runs = measure_logistic(**{**CELL, "t_s": 8.0, **changed}, **at)  # type: ignore[arg-type]
        return sum(run.objective for run in runs) / 3, sum(run.active for run in runs) / 3

    for t_l in (100.0, 10_000.0):
        objective, active = ends(t_l=t_l)
        warmer, fewer = ends(t_l=t_l, t_s=1.0)
        colder, more = ends(t_l=t_l, t_s=64.0)
        assert objective < min(warmer, colder) - 0.02
        assert fewer < active < more


def test_a_quadratic_is_measured_from_the_best() -> None:
    cell = {"t_l": 100.0, "t_s": 10.0, "step": 0.1}
    first, second = measure_quadratic(**cell, seeds=[0, 1], iterations=1000)  # type: ignore[arg-type]
    assert first != second
    (alone,) = measure_quadratic(**cell, seeds=[1], iterations=1000)  # type: ignore[arg-type]
    assert second.objective == pytest.approx(alone.objective)
    short = measure_quadratic(**cell, seeds=[1], iterations=20)[0]  # type: ignore[arg-type]
    assert 0 <= second.objective < short.objective
    few = measure_quadratic(**cell, seeds=[0], iterations=50, exactly=7)[0]  # type: ignore[arg-type]
    assert few.active == 7


def test_a_network_is_measured_on_training_images() -> None:
    cell = {"t_l": 100.0, "t_s": 5.0, "step": 0.02}
    (run,) = measure_network(**cell, seeds=[3], iterations=120)  # type: ignore[arg-type]
    task = ap.load_task("digits").hold_out(0.2, 3)
    found = search(
        "mlp",
        task,
        ap.AP(t_s=5.0, w_step=0.02),
        sparsities=[0.98],
        seed=3,
        recipe=ap.Recipe(steps=40, batch=64, lr=0.1, schedule="hold"),
        weights=True,
    )
    model = found.networks[0].model
    mean, std = (value.view(1, -1, 1, 1) for value in (task.mean, task.std))
    with torch.no_grad():
        outputs = model((task.train_images.float() / 255 - mean) / std)
    assert run.objective == pytest.approx(
        F.cross_entropy(outputs, task.train_labels).item(), rel=1e-4
    )
    right = found.networks[0].predict(task.test_images) == task.test_labels
    assert run.accuracy == pytest.approx(right.float().mean().item())
    assert run.active == found.architectures[0].kept
    absolute = measure_network(**cell, seeds=[3], iterations=120, relative=False)  # type: ignore[arg-type]
    assert absolute[0].objective != run.objective


def test_a_network_that_dies_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise ap.errors.SearchError("dead")

    monkeypatch.setattr(temperature_case, "search_network", die)
    (run,) = measure_network(t_l=100.0, t_s=5.0, step=0.02, seeds=[0], iterations=30)
    assert run.objective == math.inf


def make_frame(
    values: dict[tuple[float, float], list[float]], case: str = "digits"
) -> pd.DataFrame:
    about = {"case": case, "t_l": 1000.0, "penalty": 0.01, "active": 3, "accuracy": math.nan}
    return pd.DataFrame(
        [
            {**about, "t_s": t_s, "step": step, "seed": seed, "objective": value}
            for (t_s, step), runs in values.items()
            for seed, value in enumerate(runs)
        ]
    )


VALUES = {
    (1.0, 0.5): [4.0, 4.0],
    (1.0, 2.0): [3.0, 3.5],
    (10.0, 0.5): [2.0, 4.0],
    (10.0, 2.0): [0.1, math.nan],  # died once: no candidate
    (100.0, 0.5): [9.0, math.inf],
    (100.0, 2.0): [7.0, 9.0],
}


def test_the_best_step_is_that_of_the_mean_and_a_death_is_not_left_out() -> None:
    tuned = tune(make_frame(VALUES))
    assert tuned["step"].to_dict() == {1.0: 2.0, 10.0: 0.5, 100.0: 2.0}
    assert tuned["objective"].tolist() == [3.25, 3.0, 8.0]
    assert tuned[["low", "high"]].to_numpy().tolist() == [[3.0, 3.5], [2.0, 4.0], [7.0, 9.0]]


def test_the_table_names_the_best_and_what_is_near() -> None:
    (row,) = tabulate(make_frame(VALUES)).to_dict("records")
    assert (row["t_s"], row["step"]) == (10.0, 0.5)
    assert row["objective"] == "3.000 ± 1.414"
    assert row["near"] == "1, 10"  # 3.25 is within 1.1 of 3, and 8 is not


def test_figures_mark_the_best_and_the_papers_choice() -> None:
    (axes,) = [axes for axes in draw_steps(make_frame(VALUES)).axes if axes.images]
    image = axes.images[0].get_array()
    assert image is not None
    assert image.shape == (2, 3)
    assert image[0].tolist()[:2] == pytest.approx([4 / 3, 1.0])
    spots = {
        tuple(line.get_xydata()[0]): line.get_marker()  # type: ignore[index]
        for line in axes.lines
        if line.get_marker() in ("o", "*")
    }
    assert spots == {(0, 1): "o", (1, 0): "*", (2, 1): "o"}
    dashed = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]  # type: ignore[index]
    assert dashed == [1.0]  # t_s = 10 is t_l/100
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1,000", "100", "10"]
    (lines,) = draw_best(make_frame(VALUES)).axes
    assert lines.lines[0].get_ydata().tolist() == [3.25, 3.0, 8.0]  # type: ignore[union-attr]


def test_everything_is_run_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(**cell: Any) -> list[Run]:
        asked.append(cell)
        return [Run(1.0 + cell["t_s"] + seed, 2) for seed in cell["seeds"]]

    cases = {
        name: replace(case, measure=measure, t_s=case.t_s[:2], steps=case.steps[:2])
        for name, case in CASES.items()
    }
    monkeypatch.setattr(module, "CASES", cases)
    monkeypatch.setattr(temperature_figure, "CASES", cases)
    result = temperatures(["digits", "made"], seeds=2, iterations=7, out=tmp_path / "new")
    frame = result.frame
    assert set(frame["case"]) == {name for name, case in CASES.items() if case.data != "mnist"}
    assert (frame.groupby(["case", "t_l", "penalty", "t_s", "step"]).size() == 2).all()
    assert sorted(frame.loc[frame["case"] == "digits-t_l", "t_l"].unique()) == [
        30,
        100,
        1000,
        10000,
    ]
    assert {cell["iterations"] for cell in asked} == {7}
    assert {cell.get("penalty") for cell in asked} == {None, 0.003, 0.01, 0.03}
    names = {"temperatures.parquet"} | {
        f"temperatures-{figure}.{kind}" for figure in ("steps", "best") for kind in ("png", "pdf")
    }
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    pd.testing.assert_frame_equal(pd.read_parquet(result.parquet), frame)
    assert len(result.table) == 5 + 2 + 4 + 3  # t_l and γ have a line each


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": ["cifar10"]}, "cifar10"),
        ({"data": []}, "expected some of digits, mnist, made"),
        ({"seeds": 0}, "at least 1 of each"),
        ({"iterations": 0}, "at least 1 of each"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=message):
        temperatures(**arguments, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError):
        temperatures(iterations=10**9, out=tmp_path / "file" / "below")


def test_the_command_prints_a_table_and_names_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["reproduce", "temperatures", "--data", "made", "--seeds", "1", "--iterations", "10"]
    assert main([*small, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "quadratic-exactly" in printed
    assert str(tmp_path / "temperatures.parquet") in printed.replace("\n", "")
    assert main([*small, "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in answer["table"]] == ["quadratic", "quadratic-exactly"]
    assert all(Path(path).exists() for path in answer["files"])
    assert main([*small[:2], "--data", "nothing", "--out", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
