"""Comparisons: resumable, nothing done twice, and no look at the test images before the end."""

import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from aprune import Result, Retraining, bulk, progress, transfer
from aprune.errors import SearchError, SettingError, TrainingError
from aprune.experiments import comparison as module
from aprune.experiments import plan, retrain, run
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.experiments.store import Store, key_of
from aprune.maths.seed import derive_seed
from aprune.methods import AP, IMP
from aprune.parents import build_parent
from aprune.tasks import Task, load_task
from aprune.training import Recipe

TINY = Comparison(
    parent="mlp",
    search_task=TaskChoice("digits", classes=(0, 1, 2)),
    new_task=TaskChoice("digits", classes=3, images=30),
    methods=("ap", "random", "imp", "dense"),
    sparsities=(0.9, 0.5),
    seeds=(0, 1),
    settings=(IMP(rounds=2, steps=5),),
    search_steps=10,
    retrain_steps=12,
    lrs=(1e-7, 0.3),
    tuning_seeds=(7,),
)
PLAIN = dataclasses.replace(TINY, methods=("random", "dense"), lrs=(0.3,))
TRIAL = plan.Trial(lr=0.1, mixup=None)
DENSE = plan.Arm("dense", 0.0)
SIZE = 9 + 7 * (2 + 2)  # searches of 3 methods × seeds 0, 1, 7; 7 arms × (2 rates + 2 seeds)


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the time that figures take where they are not looked at."""
    monkeypatch.setattr(module.style, "save", lambda figure, path: None)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch, no_figure: None) -> Counter[str]:
    """Count the real searches and retrainings."""
    counter: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counter[name] += 1
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(run, "search", counted("search", run.search))
    monkeypatch.setattr(bulk, "prepare", counted("transfer", bulk.prepare))
    return counter


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, no_figure: None) -> list[int]:
    """Note how many retrainings are done together."""
    sizes: list[int] = []
    original = retrain.transfer_many

    def noted(todo: Sequence[Retraining], **more: Any) -> Iterator[Any]:
        sizes.append(len(todo))
        return original(todo, **more)

    monkeypatch.setattr(retrain, "transfer_many", noted)
    return sizes


def let_die(monkeypatch: pytest.MonkeyPatch, dies: Callable[[Retraining], bool]) -> None:
    """Make some retrainings diverge."""
    original = retrain.transfer_many

    def dying(
        todo: Sequence[Retraining], **more: Any
    ) -> Iterator[tuple[Retraining, Result | TrainingError]]:
        for retraining, result in original(todo, **more):
            error = TrainingError("the loss is inf at step 3 of 12")
            yield retraining, error if dies(retraining) else result

    monkeypatch.setattr(retrain, "transfer_many", dying)


def do(comparison: Comparison, out: Path, **more: Any) -> pd.DataFrame:
    return compare(comparison, out, device="cpu", progress=False, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    out = tmp_path_factory.mktemp("whole")
    return do(TINY, out), out


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


def test_better_learning_rate_is_chosen_for_all_methods(
    whole: tuple[pd.DataFrame, Path],
) -> None:
    assert (whole[0]["lr"] == 0.3).all()


def test_what_was_tried_to_choose_a_learning_rate_is_written_down(
    whole: tuple[pd.DataFrame, Path],
) -> None:
    tried = pd.read_parquet(whole[1] / "tuning.parquet")
    assert len(tried) == 7 * 2
    assert not tried.duplicated(["method", "sparsity", "lr"]).any()
    assert set(tried["seed"]) == {7}
    task = plan.Plan(TINY, torch.device("cpu")).tuning(DENSE, 7, TRIAL).task
    assert set(tried["images"]) == {len(task.train_labels)}
    assert set(tried["judged_on"]) == {len(task.test_labels)}
    best = tried.loc[tried.groupby(["method", "sparsity"])["accuracy"].idxmax()]
    assert (best["lr"] == 0.3).all()
    assert tried["accuracy"].nunique() > 2


def test_where_there_is_no_choice_nothing_was_tried(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, no_figure: None
) -> None:
    shutil.copytree(whole[1], tmp_path, dirs_exist_ok=True)
    do(PLAIN, tmp_path)
    assert not (tmp_path / "tuning.parquet").exists()


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


def test_retrainings_of_a_stage_are_done_together(
    whole: tuple[pd.DataFrame, Path], tmp_path: Path, stages: list[int]
) -> None:
    pd.testing.assert_frame_equal(do(TINY, tmp_path), whole[0])
    assert stages == [7 * 2, 7 * 2]  # the tuning of all arms, then all of them for both seeds


def test_killed_within_a_stage_does_the_rest_of_it(
    whole: tuple[pd.DataFrame, Path],
    tmp_path: Path,
    stages: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = retrain.transfer_many

    def killed(todo: Sequence[Retraining], **more: Any) -> Iterator[Any]:
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


def test_learning_rate_does_not_depend_on_test_images(
    whole: tuple[pd.DataFrame, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_figure: None,
) -> None:
    def spoilt(*args: Any, **kwargs: Any) -> Task:
        """Load a task on whose test images whatever learns does worse than what does not."""
        task = load_task(*args, **kwargs)
        if kwargs["split"] == "tuning":  # it holds none
            return task
        wrong = (task.test_labels + 1) % task.num_classes
        return dataclasses.replace(task, test_labels=wrong)

    monkeypatch.setattr(plan, "load_task", spoilt)
    frame = do(TINY, tmp_path)
    same = ["method", "sparsity", "seed", "lr", "train_loss", "connections"]
    pd.testing.assert_frame_equal(frame[same], whole[0][same])
    assert frame["accuracy"].mean() < whole[0]["accuracy"].mean() - 0.2


def test_rates_are_chosen_on_the_first_three_seeds() -> None:
    many = dataclasses.replace(TINY, seeds=(4, 5, 6, 8), tuning_seeds=())
    assert many.tuning_seeds == (4, 5, 6)
    assert dataclasses.replace(many, seeds=(4,), tuning_seeds=()).tuning_seeds == (4,)


def test_without_rates_they_lie_around_the_usual_one() -> None:
    made = plan.Plan(dataclasses.replace(TINY, lrs=()), torch.device("cpu"))
    task = TINY.new_task.load(seed=0)
    usual = Recipe.for_transfer(build_parent("mlp", task), task).lr
    assert [trial.lr for trial in made.trials()] == [usual / 2, usual, usual * 2]


def test_mixing_is_chosen_like_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figure: None
) -> None:
    seen = set()

    def picky(retraining: Retraining) -> bool:
        recipe = retraining.recipe
        assert recipe is not None
        seen.add((recipe.lr, recipe.mixup))
        # dense is better off without
        return recipe.mixup == (0.5 if retraining.architecture is None else 0.0)

    let_die(monkeypatch, picky)
    frame = do(dataclasses.replace(PLAIN, lrs=(0.1, 0.3), mixups=(0.5, 0.0)), tmp_path)
    assert seen == set(itertools.product((0.1, 0.3), (0.5, 0.0)))
    chosen = frame.groupby("method")["mixup"].unique().map(list).to_dict()
    assert chosen == {"random": [0.5], "dense": [0.0]}
    assert not frame["diverged"].any()
    assert "| learning rate | mixup |" in (tmp_path / "table.md").read_text()
    # without a choice the recipe decides, and the table does not mention it
    alone = do(PLAIN, tmp_path / "alone")
    assert (alone["mixup"] == 0.0).all()


def test_tuning_is_judged_on_training_images_only() -> None:
    made = plan.Plan(TINY, torch.device("cpu"))
    tuning, final = made.tuning(DENSE, 7, TRIAL), made.final(DENSE, 7, TRIAL)
    assert tuning.recipe == final.recipe
    assert torch.equal(tuning.task.train_images, final.task.train_images)
    every = load_task("digits", classes=final.task.provenance["classes"])
    assert content(tuning.task.test_images) == (
        content(every.train_images) - content(final.task.train_images)
    )
    assert not content(tuning.task.test_images) & content(final.task.test_images)


@pytest.mark.parametrize(
    "choice",
    [
        TaskChoice("digits", classes=(0, 1)),  # all images
        TaskChoice("digits", classes=(0, 1), images=230),  # nearly all
        TaskChoice("digits", classes=(0, 1), images=30, split="test"),
    ],
)
def test_a_task_that_leaves_too_few_images_is_tuned_on_a_part_of_its_own(
    choice: TaskChoice,
) -> None:
    made = plan.Plan(dataclasses.replace(TINY, new_task=choice), torch.device("cpu"))
    tuning, final = made.tuning(DENSE, 7, TRIAL), made.final(DENSE, 7, TRIAL)
    judged, trained = content(tuning.task.test_images), content(tuning.task.train_images)
    assert len(judged) == pytest.approx(len(trained) / 4, abs=2)
    assert not judged & trained
    assert judged | trained == content(final.task.train_images)


def content(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


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


def test_densities_alone_go_onto_another_parent(
    tmp_path: Path, no_figure: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Retraining] = []
    whole = retrain.transfer_many

    def noted(todo: Sequence[Retraining], **more: Any) -> Iterator[Any]:
        done.extend(todo)
        return whole(todo, **more)

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
