"""Comparisons: what comes out of them, and what they refuse."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from aprune import Architecture, Retraining, transfer
from aprune.errors import SearchError, SettingError
from aprune.experiments import plan, retrain, run
from aprune.experiments.comparison import TaskChoice, compare
from aprune.experiments.store import Store
from aprune.maths.seed import derive_seed
from aprune.maths.select import keep_count
from aprune.tasks import Task, load_task
from tiny import DENSE, PLAIN, TINY, TRIAL, do, let_die


def test_rows_are_all_there(whole: tuple[pd.DataFrame, Path]) -> None:
    frame, out = whole
    assert frame.attrs["complete"] is True
    assert len(frame) == 2 * 7
    assert not frame.duplicated(["method", "sparsity", "seed"]).any()
    total = 64 * 256 + 256 * 128 + 128 * 3
    kept = {0.0: total, 0.5: round(total * 0.5), 0.9: round(total * 0.1)}
    assert frame["connections"].tolist() == [kept[s] for s in frame["sparsity"]]
    assert (frame["images"] == 30).all()
    assert frame["accuracy"].between(0, 1).all()
    steps = frame.drop_duplicates("method").set_index("method")["search_steps"].to_dict()
    assert steps == {"ap": 10, "random": 0, "imp": 10, "dense": 0}
    of_ap = frame[frame["method"] == "ap"]
    assert of_ap[["search_loss", "search_accuracy"]].notna().all(axis=None)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "rows.parquet"), frame, check_like=True)
    assert "| 0.9 | IMP |" in (out / "table.md").read_text()
    assert (out / "comparison.png").stat().st_size > 0
    assert (out / "comparison.pdf").stat().st_size > 0


def test_retrainings_of_a_stage_are_done_together(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, stages: list[int]
) -> None:
    pd.testing.assert_frame_equal(do(TINY, tmp_path), whole[0])
    assert stages == [7 * 2, 7 * 2]  # the tuning of all arms, then all of them for both seeds


def test_equal_retrainings_are_done_once(tmp_path: Path, count: Counter[str]) -> None:
    made, cpu = plan.Plan(TINY, torch.device("cpu")), torch.device("cpu")
    same = [made.final(DENSE, 0, TRIAL) for _ in range(2)]
    store = Store(tmp_path)
    [(done, result)] = retrain.retrain_all(same, store, cpu)
    assert done == same[0]
    assert sorted(result) == ["accuracy", "curve", "device", "failed", "train_loss"]
    assert len(result["curve"]) == TINY.retrain_steps
    assert list(retrain.retrain_all(same, store, cpu, time_limit=0.0)) == [(done, result)]
    assert count == {"transfer": 1}


def test_reshuffled_architectures_keep_their_densities_only(
    tmp_path: Path, whole: tuple[pd.DataFrame, Path], count: Counter[str]
) -> None:
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    frame = do(dataclasses.replace(TINY, also=(("ap", "reshuffled"),)), tmp_path)
    # two sparsities with two rates and two seeds; all others are what they were
    assert count == {"transfer": 2 * (2 + 2)}
    rows = frame.set_index(["method", "sparsity", "seed"])
    again = rows[~rows["reshuffled"]].drop(columns="lr")
    old = whole[0].set_index(["method", "sparsity", "seed"]).drop(columns="lr")
    pd.testing.assert_frame_equal(again, old)
    moved = rows[rows["reshuffled"]]
    assert moved["connections"].tolist() == again.loc[moved.index, "connections"].tolist()
    assert (moved["train_loss"] != again.loc[moved.index, "train_loss"]).all()
    # one of them by hand
    made = plan.Plan(TINY, torch.device("cpu"))
    chosen = moved.loc[("ap", 0.9, 1)]
    one = made.final(plan.Arm("ap", 0.9, "reshuffled"), 1, plan.Trial(chosen["lr"], None))
    found = one.search.architecture(0.9, Store(tmp_path), torch.device("cpu"))
    shuffled = found.shuffle(derive_seed(1, "reshuffle"))
    result = transfer(shuffled, "mlp", one.task, seed=1, recipe=one.recipe, device="cpu")
    assert result.accuracy == chosen["accuracy"]
    assert result.curve.final() == chosen["train_loss"]
    assert "AP, reshuffled" in (tmp_path / "table.md").read_text()


def test_methods_share_tasks_and_each_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def noted(name: str, **kwargs: Any) -> Task:
        loaded.append((kwargs["classes"], kwargs["seed"]))
        return load_task(name, **kwargs)

    monkeypatch.setattr(plan, "load_task", noted)
    do(PLAIN, tmp_path)
    # the search task draws nothing, so that it is one for all seeds
    assert sorted(loaded, key=str) == [((0, 1, 2), 0), (3, 0), (3, 1)]


def test_what_diverges_is_never_chosen_and_never_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(retraining: Retraining) -> bool:
        assert retraining.recipe is not None
        dense_again = retraining.architecture is None and retraining.seed == 1
        return retraining.recipe.lr == 0.3 or dense_again

    let_die(monkeypatch, dies)
    frame = do(dataclasses.replace(PLAIN, lrs=(0.3, 1e-7)), tmp_path)
    assert (frame["lr"] == 1e-7).all()
    dead = (frame["method"] == "dense") & (frame["seed"] == 1)
    assert frame["diverged"].tolist() == dead.tolist()
    assert frame["accuracy"].isna().tolist() == dead.tolist()
    assert "1 (1 diverged)" in (tmp_path / "table.md").read_text()


def test_search_that_dies_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = run.search, []

    def dying(parent: str, task: Task, method: Any, **more: Any) -> Any:
        calls.append(method.name)
        if method.name == "ap":
            raise SearchError("the search died")
        return original(parent, task, method, **more)

    monkeypatch.setattr(run, "search", dying)
    setting = dataclasses.replace(TINY, methods=("ap", "random"), lrs=(0.3,))
    frame = do(setting, tmp_path)
    assert frame.groupby("method")["diverged"].all().to_dict() == {"ap": True, "random": False}
    assert calls == ["ap", "random"] * 2  # once a seed, not once a sparsity
    assert "| 0.5 | AP | diverged | 0 (2 diverged) |" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    "bad",
    [
        {"methods": ("ap", "magic")},
        {"methods": ()},
        {"sparsities": (0.5, 1.0)},
        {"sparsities": (0.5, 0.5)},
        {"seeds": ()},
        {"lrs": (0.1, 0.1)},
        {"lrs": (0.1, -0.1)},
        {"tuning_seeds": (1, 1)},
        {"mixups": (0.5, 1.5)},
        {"mixups": (0.5, 0.5)},
        {"mixups": (float("nan"),)},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        dataclasses.replace(TINY, **bad)


def test_methods_have_as_many_connections_where_layers_have_other_shapes(
    tmp_path: Path, no_figure: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, Architecture]] = []
    whole = retrain.transfer_many

    def noted(todo: Iterator[Retraining], **more: Any) -> Iterator[Any]:
        for pair in whole(todo, **more):
            fitted = pair[1].architecture
            assert fitted is not None
            trained.append((str(fitted.provenance["method"]), fitted))
            yield pair

    monkeypatch.setattr(retrain, "transfer_many", noted)
    asked = dataclasses.replace(
        TINY,
        new_task=TaskChoice("digits", classes=4, images=40),  # the search had 3
        methods=("ap", "random", "imp", "magnitude"),
        also=(("imp", "reshuffled"),),
        lrs=(0.3,),
        seeds=(0,),
    )
    frame = compare(asked, tmp_path, device="cpu")
    total = 64 * 256 + 256 * 128 + 128 * 4
    expected = {sparsity: keep_count(total, sparsity) for sparsity in TINY.sparsities}
    assert len(trained) == 5 * len(expected)
    assert {method for method, _ in trained} == {"ap", "random", "imp", "magnitude"}
    assert {fitted.kept for _, fitted in trained} == {*expected.values()}
    assert frame["connections"].tolist() == frame["sparsity"].map(expected).tolist()
    made = plan.Plan(asked, torch.device("cpu"))
    described = made.final(plan.Arm("ap", 0.5), 0, TRIAL).describe()
    assert described["fitted"] == "exactly"  # not as it was done once, nor as where all fits
    assert (
        "fitted" not in plan.Plan(TINY, made.device).final(plan.Arm("ap", 0.5), 0, TRIAL).describe()
    )
    empty = [len(fitted.empty_layers()) for _, fitted in trained]
    assert sorted(frame["empty_layers"]) == sorted(empty)


def test_classes_that_were_searched_on_are_counted(tmp_path: Path, no_figure: None) -> None:
    part = TaskChoice("digits", classes=(2, 3, 4), images=40)
    few = dataclasses.replace(PLAIN, seeds=(0,), new_task=part)  # the search has 0, 1 and 2
    assert compare(few, tmp_path, device="cpu").attrs["shared"] == 1
    own = dataclasses.replace(few, new_task=dataclasses.replace(part, split="test"))
    assert compare(own, tmp_path, device="cpu").attrs["shared"] == 0  # that is its purpose
    with pytest.raises(SettingError, match="the search is on test images of digits"):
        dataclasses.replace(few, search_task=TaskChoice("digits", images=30, split="test"))


def test_densities_alone_go_onto_another_parent(
    tmp_path: Path, no_figure: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Retraining] = []
    whole = retrain.transfer_many

    def noted(todo: Iterator[Retraining], **more: Any) -> Iterator[Any]:
        for pair in whole(todo, **more):
            done.append(pair[0])
            yield pair

    monkeypatch.setattr(retrain, "transfer_many", noted)
    onto = dataclasses.replace(TINY, onto="conv", methods=("ap", "dense"), lrs=(0.3,), seeds=(0,))
    frame = compare(onto, tmp_path, device="cpu")
    assert set(frame["onto"]) == {"conv"}
    assert set(frame["parent"]) == {"mlp"}
    total = 9 * 32 + 288 * 64 + 576 * 64 + 256 * 3
    assert sorted(frame["connections"]) == [total // 10, total // 2, total]
    assert all(retraining.parent == "conv" for retraining in done)
    for retraining in done:
        if retraining.architecture is not None:
            assert retraining.architecture.names[0] == "features.0.weight"
            assert retraining.architecture.provenance["parent"] == "mlp"
    assert "mlp → conv" in (tmp_path / "table.md").read_text()
    with pytest.raises(SettingError, match="leave one of the two out"):
        dataclasses.replace(onto, also=(("ap", "reshuffled"),))
    with pytest.raises(SettingError, match="onto is 'mlp', which is the parent"):
        dataclasses.replace(onto, onto="mlp")
