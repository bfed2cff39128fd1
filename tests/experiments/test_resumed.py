"""Comparisons that were stopped, or have little time: nothing done twice, and the same in the end."""

import contextlib
import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from aprune import Retraining, bulk, progress
from aprune.experiments import plan, retrain, run
from aprune.experiments.store import Store, key_of
from aprune.methods import AP
from tiny import DENSE, PLAIN, SIZE, TINY, TRIAL, do


@pytest.mark.parametrize("until", [1, 12, SIZE - 1])
def test_interrupted_and_resumed_equals_uninterrupted(
    whole: tuple[pd.DataFrame, Path],
    tmp_path: Path,
    count: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    until: int,
) -> None:
    numbers = itertools.count()

    def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if next(numbers) == until:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(run, "search", interrupted(run.search))
        patch.setattr(bulk, "prepare", interrupted(bulk.prepare))
        with pytest.raises(KeyboardInterrupt):
            do(TINY, tmp_path)
    assert count.total() == until
    frame = do(TINY, tmp_path)
    assert count.total() == SIZE
    pd.testing.assert_frame_equal(frame, whole[0])


def test_what_an_interruption_left_gets_the_engine_that_suits_all(
    whole: tuple[pd.DataFrame, Path],
    tmp_path: Path,
    no_figure: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines round differently: by what is left of a stage, the last runs would be others."""
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    store, chosen_for = Store(tmp_path), []
    original = bulk.choose_engine

    def noted(asked: Any, model: Any, steps: int) -> Any:
        chosen_for.append(steps)
        return original(asked, model, steps)

    monkeypatch.setattr(bulk, "choose_engine", noted)
    tried = plan.Plan(TINY, torch.device("cpu"))
    for arm in (DENSE, plan.Arm("ap", 0.5)):
        store.run_path(tried.final(arm, 1, plan.Trial(0.3, None)).describe()).unlink()
    do(TINY, tmp_path)
    assert chosen_for == [7 * 2 * 12 // bulk._SAVED] * 2


def test_killed_within_a_stage_does_the_rest_of_it(
    whole: tuple[pd.DataFrame, Path],
    tmp_path: Path,
    stages: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = retrain.transfer_many

    def killed(todo: Iterator[Retraining], **more: Any) -> Iterator[Any]:
        yield from itertools.islice(original(todo, **more), 5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retrain, "transfer_many", killed)
        with pytest.raises(KeyboardInterrupt):
            do(TINY, tmp_path)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    assert len(kept) == 3 + 5  # searches of the tuning seed, and what was done
    stages.clear()
    pd.testing.assert_frame_equal(do(TINY, tmp_path), whole[0])
    assert stages == [7 * 2 - 5, 7 * 2]
    assert kept.items() <= {p.name: p.read_bytes() for p in (tmp_path / "runs").iterdir()}.items()


def test_nothing_is_done_twice_and_files_stay_the_same(
    whole: tuple[pd.DataFrame, Path], count: Counter[str]
) -> None:
    frame, out = whole
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    pd.testing.assert_frame_equal(do(TINY, out), frame)
    assert count.total() == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_only_what_changed_is_done_anew(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, count: Counter[str]
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "copy")
    do(dataclasses.replace(TINY, settings=(*TINY.settings, AP(t_s=5.0))), out)
    assert count == {"search": 3, "transfer": 2 * (2 + 2)}


def test_rows_need_no_architectures_but_new_retrainings_do(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, count: Counter[str]
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "copy")
    shutil.rmtree(out / "architectures")
    do(TINY, out)
    assert count.total() == 0
    random_only = dataclasses.replace(TINY, methods=("random",), lrs=(0.2,))
    do(random_only, out)
    assert count == {"search": 2, "transfer": 4}


def test_searches_whose_architectures_were_not_kept_are_shared_too(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, count: Counter[str]
) -> None:
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "architectures")
    store, here, made = Store(tmp_path), torch.device("cpu"), plan.Plan(TINY, torch.device("cpu"))
    runs = [made.final(plan.Arm(name, 0.5), 0, TRIAL) for name in ("ap", "random", "imp")]
    wanted = [(run.search, run.search.describe_architecture(0.5)) for run in runs if run.search]
    other, held = wanted[0]
    with store.claim(other.describe()) as mine:  # as another process would
        assert mine
        retrain._search_again([*runs, *runs], store, here, progress.Clock(None))
        assert not store.has_architecture(held)
    assert all(store.has_architecture(description) for _, description in wanted[1:])
    assert count == {"search": 2}
    retrain._search_again(runs, store, here, progress.Clock(0.0))  # no time
    assert not store.has_architecture(held)
    retrain._search_again(runs, store, here, progress.Clock(None))
    assert store.has_architecture(held)
    assert count == {"search": 3}


def test_time_for_a_search_is_asked_for_where_one_is_needed(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    store, here, made = Store(tmp_path), torch.device("cpu"), plan.Plan(TINY, torch.device("cpu"))
    new = plan.Trial(lr=0.11, mixup=None)
    there = [made.final(arm, 0, new) for arm in (plan.Arm("ap", 0.5), DENSE)]
    gone = made.final(plan.Arm("imp", 0.5), 0, new)
    assert gone.search is not None
    store.architecture_path(gone.search.describe_architecture(0.5)).unlink()
    monkeypatch.setattr(progress.Clock, "may_start", lambda self, what: what != "search")
    done = retrain.retrain_all([gone, *there], store, here, 1_000.0)
    assert {run for run, _ in done} == {*there}


def test_one_that_starts_from_another_does_not_wait_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_count", lambda *_: 4)  # side by side, as on a GPU
    store, here, made = Store(tmp_path), torch.device("cpu"), plan.Plan(TINY, torch.device("cpu"))
    first = made.final(DENSE, 0, TRIAL)
    second = dataclasses.replace(first, start="fine_tuned", before=first, seed=3)
    done = dict(retrain.retrain_all([first, second], store, here))
    assert set(done) == {first, second}
    assert all(result["failed"] is None for result in done.values())


def test_no_architecture_is_read_for_a_run_that_another_process_is_at(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    store, here, made = Store(tmp_path), torch.device("cpu"), plan.Plan(TINY, torch.device("cpu"))
    trials = [plan.Trial(lr=lr, mixup=None) for lr in (0.11, 0.12, 0.13, 0.14)]  # new ones
    runs = [made.final(plan.Arm(name, 0.5), 0, t) for name in ("ap", "imp") for t in trials]
    read: list[str] = []
    original = Store.get_architecture

    def noted(self: Store, description: Any) -> Any:
        read.append(description["search"]["method"]["name"])
        return original(self, description)

    monkeypatch.setattr(Store, "get_architecture", noted)
    with contextlib.ExitStack() as stack:
        for other in runs[:4]:
            assert stack.enter_context(store.claim(other.describe()))  # as another process would
        done = retrain.retrain_all(runs, store, here)
        for _ in runs[4:]:
            assert next(done)[0] in runs[4:]
        assert read == ["imp"]  # once for all rates
    assert {found for found, _ in done} == {*runs[:4]}  # they were given up
    assert read == ["imp", "ap"]


def test_damaged_files_are_redone(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, count: Counter[str]
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "copy")
    for path in [*(out / "runs").iterdir(), *(out / "architectures").iterdir()]:
        path.write_bytes(path.read_bytes()[:-20])
    again = do(TINY, out)
    pd.testing.assert_frame_equal(again, whole[0])
    assert count.total() == SIZE
    assert len(again.attrs["damaged"]) == len(set(again.attrs["damaged"])) == SIZE
    assert do(TINY, out).attrs["damaged"] == []


def test_no_time_gives_no_rows_and_says_so(tmp_path: Path, count: Counter[str]) -> None:
    frame = do(TINY, tmp_path, time_limit=0.0)
    assert (len(frame), frame.attrs["complete"], count.total()) == (0, False, 0)
    assert "No retraining is finished" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize(
    ("limit", "retrainings"),
    [
        (35.0, 1),  # two searches and a retraining end at 30; another would end at 40
        (55.0, 3),
        (75.0, 5),
    ],
)
def test_time_limit_stops_before_a_run_that_would_pass_it(
    tmp_path: Path,
    count: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    limit: float,
    retrainings: int,
) -> None:
    now = [0.0]

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            now[0] += 10.0
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(run, "search", slow(run.search))
    monkeypatch.setattr(bulk, "prepare", slow(bulk.prepare))
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    frame = do(PLAIN, tmp_path, time_limit=limit)
    assert count == {"search": 2, "transfer": retrainings}
    assert (len(frame), frame.attrs["complete"]) == (retrainings, False)
    assert "Not complete" in (tmp_path / "table.md").read_text()
    assert len(do(PLAIN, tmp_path)) == 6
    # what is done is shown without any time
    assert do(PLAIN, tmp_path, time_limit=0.0).attrs["complete"] is True


def test_time_for_some_searches_only(
    tmp_path: Path, count: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, search = [0.0], run.search

    def slow(*args: Any, **kwargs: Any) -> Any:
        now[0] += 10.0
        return search(*args, **kwargs)

    monkeypatch.setattr(run, "search", slow)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    frame = do(PLAIN, tmp_path, time_limit=15.0)  # the second would end at 20
    assert count == {"search": 1}
    assert (len(frame), frame.attrs["complete"]) == (0, False)
    assert len(do(PLAIN, tmp_path)) == 6
    assert count == {"search": 2, "transfer": 6}


def test_without_time_all_that_is_known_is_shown_in_order(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, count: Counter[str]
) -> None:
    out = shutil.copytree(whole[1], tmp_path / "copy")
    shutil.rmtree(out / "architectures")
    made = plan.Plan(TINY, torch.device("cpu"))
    lost = [
        made.final(plan.Arm("ap", 0.9), 0, plan.Trial(lr=0.3, mixup=None)),
        made.search("imp", 1),
    ]
    for each in lost:
        assert each is not None
        (out / "runs" / f"{key_of(each.describe())}.json").unlink()
    frame = do(TINY, out, time_limit=0.0)
    full = whole[0]
    gone = (full["method"] == "ap") & (full["sparsity"] == 0.9) & (full["seed"] == 0)
    gone |= (full["method"] == "imp") & (full["seed"] == 1)
    assert count.total() == 0
    assert frame.attrs["complete"] is False
    pd.testing.assert_frame_equal(frame, full[~gone].reset_index(drop=True))
