"""Learning rates and mixing: chosen for each method alike, and never by test images."""

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from aprune import Retraining
from aprune.experiments import plan
from aprune.experiments.comparison import TaskChoice
from aprune.parents import build_parent
from aprune.tasks import Task, load_task
from aprune.training import Recipe
from tiny import DENSE, PLAIN, TINY, TRIAL, do, let_die


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
