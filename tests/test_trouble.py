"""Numbers that go wrong: noticed, said in one line, and nothing good is lost."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import aprune as ap
from aprune.cli.output import complain_of
from aprune.errors import NetworkWarning, SettingError, TaskError, TrainingError
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.training.fit import Training
from helpers import other_world

DIGITS = ap.load_task("digits", classes=[0, 1, 2], images=60, seed=0)
FIND = "find --parent mlp --task digits --sparsity 0.5 --steps 10 --batch 64 --device cpu"


@pytest.mark.usefixtures("often")
def test_the_last_good_state_outlives_numbers_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Training.advance

    def spoil(self: Training) -> None:
        advance(self)
        if self.step == 7:
            with torch.no_grad():
                next(self._model.parameters()).fill_(torch.nan)

    def train() -> None:
        ap.transfer(None, "mlp", DIGITS, recipe=ap.Recipe(20, 0.1), checkpoint=tmp_path)

    monkeypatch.setattr(Training, "advance", spoil)
    with pytest.raises(TrainingError, match="the loss is nan at step 7 of 20: try"):
        train()
    newest = sorted(tmp_path.iterdir())[-1]
    assert newest.stem.endswith("-0000000006")
    tensors = load_file(newest)
    assert all(t.isfinite().all() for name, t in tensors.items() if name.startswith("model/"))
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the state is sound
        train()


class Deaf(nn.Module):
    """A network that does not listen."""

    def __init__(self, task: ap.Task) -> None:
        super().__init__()
        self.fc = nn.Linear(64, task.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.zeros_like(x.flatten(1)) * x.flatten(1))


def test_a_dead_network_is_noticed_once() -> None:
    with pytest.warns(NetworkWarning) as said:
        ap.transfer(None, Deaf, DIGITS, recipe=ap.Recipe(200, 0.1), device="cpu")
    (one,) = said
    assert str(one.message).startswith(
        "after 60 of 200 steps the network gives one and the same output for all images: it is dead"
    )


def test_a_loss_that_ends_far_above_guessing_is_noticed() -> None:
    wild = ap.Recipe(30, 1000.0)
    with pytest.warns(
        NetworkWarning, match=r"where guessing has 1\.1: the training has gone astray"
    ):
        ap.transfer(None, "mlp", DIGITS, recipe=wild, device="cpu")


@pytest.mark.parametrize(
    "do",
    [
        lambda task, recipe: ap.find("resnet20", task, sparsity=0.5, recipe=recipe),
        lambda task, recipe: ap.transfer(None, "resnet20", task, recipe=recipe),
        lambda task, recipe: list(
            ap.transfer_many([ap.Retraining(None, "resnet20", task, recipe=recipe)])
        ),
    ],
)
def test_norms_over_a_single_value_are_told_in_one_line(do: Callable[..., object]) -> None:
    tiny = ap.load_task("digits", size=4)  # a single place is left of it
    with pytest.raises(SettingError, match="a single value of each channel from a batch of 1:"):
        do(tiny, ap.Recipe(2, 0.1, batch=1))


def test_a_dead_network_among_many_is_noticed() -> None:
    recipe = ap.Recipe(60, 0.1)
    todo = [ap.Retraining(None, parent, DIGITS, recipe=recipe) for parent in (Deaf, "mlp")]
    with pytest.warns(NetworkWarning, match="after 60 of 60 steps") as said:
        assert len(list(ap.transfer_many(todo, device="cpu"))) == 2
    assert len(said) == 1


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_a_living_network_is_not_taken_for_dead(parent: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ap.transfer(None, parent, DIGITS, recipe=ap.Recipe(60, 0.05), device="cpu")


def test_looking_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> dict[str, torch.Tensor]:
        recipe = ap.Recipe(80, 0.05)
        return ap.transfer(None, "conv_bn", DIGITS, recipe=recipe, device="cpu").model.state_dict()

    seen = train()
    monkeypatch.setattr(Training, "warn_if_dead", lambda self: None)
    unseen = train()
    assert all(torch.equal(seen[name], unseen[name]) for name in unseen)


def test_a_layer_that_loses_its_last_connection_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2))
    search = ap.attach(model, ap.AP(sparsity=0.9, steps=10, dense_start=0.0))
    with torch.no_grad():
        search.w["2.weight"].fill_(-1.0)
    x = torch.randn(16, 4)

    def descend() -> None:
        for _ in range(10):
            nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            search.step()

    with pytest.warns(NetworkWarning, match=r"no connection is left in 2\.weight, so nothing"):
        descend()


def test_comparisons_tell_it_when_they_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = TaskChoice("digits", classes=(0, 1), images=40)
    dead = Comparison(
        "conv",
        replace(digits, classes=(1, 2)),
        digits,
        ("magnitude",),
        (0.999,),
        (0,),
        search_steps=60,
        retrain_steps=60,
        lrs=(0.1,),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", NetworkWarning)
        frame = compare(dead, tmp_path, device="cpu")
    assert frame["empty_layers"].item() > 0
    assert frame.attrs["dead"] == 1
    assert frame.attrs["shared"] == 1
    complain_of(frame.attrs)
    assert capsys.readouterr().err == (
        "aprune: the new task has 1 of the classes that were searched on, so it is no new one: give"
        " others with --classes, or with --from-classes\n"
        "aprune: dead networks, with one and the same output for all images: 1 of those retrained; a"
        " lower sparsity or a smaller learning rate may help\n"
    )
    alive = compare(replace(dead, sparsities=(0.5,)), tmp_path, device="cpu")
    assert alive.attrs["dead"] == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda t: {"train_labels": torch.zeros_like(t.train_labels)},
            "are of class kind 0; give some of",
        ),
        (
            lambda t: {"train_images": torch.full_like(t.train_images, 9)},
            "are the same; give images",
        ),
    ],
)
def test_nothing_to_tell_apart(change: Callable[[ap.Task], Any], complaint: str) -> None:
    task = other_world()
    poor = replace(task, **change(task))
    for do in (
        lambda: ap.find("mlp", poor, sparsity=0.5),
        lambda: ap.transfer(None, "mlp", poor),
        lambda: list(ap.transfer_many([ap.Retraining(None, "mlp", poor)])),
    ):
        with pytest.raises(TaskError, match=complaint):
            do()


@pytest.mark.parametrize(
    ("go", "message"),
    [
        (lambda: ap.find("mlp", "digits", sparsity=0.5), r"task is 'digits': .*; load_task"),
        (lambda: ap.find("mlp", DIGITS, "ap", sparsity=0.5), r"method is 'ap': .* such as AP\(\)"),
        (
            lambda: ap.find("mlp", DIGITS, ap.AP, sparsity=0.5),
            r"expected a method with its settings",
        ),
        (lambda: ap.find("mlp", DIGITS, sparsity=0.5, recipe=5), "recipe is 5: expected Recipe"),
        (
            lambda: ap.transfer("x.safetensors", "mlp", DIGITS),
            r"Architecture\.load\(path\) reads one",
        ),
        (lambda: ap.transfer(None, "mlp", "digits"), "task is 'digits': expected Task"),
        (
            lambda: ap.transfer(None, "mlp", DIGITS, start_from=ap.build_parent("mlp", DIGITS)),
            "start_from is Sequential: expected Trained",
        ),
    ],
)
def test_a_name_where_a_thing_is_meant_is_said(go: Callable[[], object], message: str) -> None:
    with pytest.raises(ap.ApruneError, match=message) as caught:
        go()
    assert "\n" not in str(caught.value)
