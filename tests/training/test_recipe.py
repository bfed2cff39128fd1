"""Recipes: what they refuse, and what they take by default."""

import dataclasses
import json
from functools import partial
from typing import Any

import pytest

from aprune import build_parent, load_task
from aprune.errors import SettingError
from aprune.maths.schedules import one_cycle
from aprune.tasks import Augment
from aprune.training import Recipe, describe_settings

GOOD = Recipe(steps=10, lr=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0: expected a whole number from 1 on"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": 0.0}, "learning rate is 0.0"),
        ({"lr": -1.0}, "learning rate is -1.0"),
        ({"lr": float("nan")}, "learning rate is nan"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"mixup": 1.5}, "mixup is 1.5: expected a share from 0 to 1"),
        ({"mixup": float("nan")}, "mixup is nan"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov is set without momentum"),
        ({"optimiser": "lion"}, "unknown optimiser 'lion': expected sgd or adam"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        GOOD.but(**changes)


def test_but_changes_what_is_given() -> None:
    assert GOOD.but(steps=20, lr=None) == Recipe(steps=20, lr=0.1)
    assert GOOD.but(weight_decay=0.0).weight_decay == 0.0


def test_defaults_follow_the_network_and_the_task() -> None:
    task = load_task("digits", images=100)
    plain, normed = build_parent("conv", task), build_parent("conv_bn", task)
    assert Recipe.for_search(plain, task).steps == 1000
    assert Recipe.for_search(plain, task).lr < Recipe.for_search(normed, task).lr
    clips = [Recipe.for_transfer(model, task).clip for model in (plain, normed)]
    assert clips == [3.0, 1.0]


def test_photographs_are_mixed_by_default_and_signs_are_not() -> None:
    signs = load_task("digits", images=100)
    photographs = dataclasses.replace(signs, augment=Augment(flip=True))
    model = build_parent("mlp", signs)
    assert Recipe.for_transfer(model, signs).mixup == 0.0
    assert Recipe.for_transfer(model, photographs).mixup == 0.5


def test_many_photographs_are_learnt_from_for_longer() -> None:
    signs = load_task("digits")
    many = len(signs.train_labels) * 4
    pixels, labels = signs.train_images.repeat(4, 1, 1, 1), signs.train_labels.repeat(4)
    more = dataclasses.replace(signs, train_images=pixels, train_labels=labels)
    photographs = dataclasses.replace(more, augment=Augment(flip=True))
    model = build_parent("conv_bn", signs)
    assert Recipe.for_transfer(model, more).steps == 1_600
    recipe = Recipe.for_transfer(model, photographs)
    assert recipe.steps * recipe.batch == pytest.approx(80 * many, rel=0.001)


def test_without_norms_photographs_are_learnt_slowly() -> None:
    signs = load_task("digits", images=100)
    photographs = dataclasses.replace(signs, augment=Augment(flip=True))
    plain, normed = build_parent("conv", signs), build_parent("conv_bn", signs)
    slow, usual = (Recipe.for_transfer(model, photographs) for model in (plain, normed))
    assert (slow.steps, slow.lr) == (2 * usual.steps, usual.lr / 2)
    assert Recipe.for_transfer(plain, signs).lr == usual.lr


def then(step: int, steps: int, after: Any) -> float:
    return float(after(step, steps))


@dataclasses.dataclass(frozen=True)
class Named:
    share: float

    def __call__(self, step: int, steps: int) -> float:
        return self.share


class Nameless:
    def __call__(self, step: int, steps: int) -> float:
        return 1.0


def test_settings_are_described_in_json() -> None:
    def described(schedule: Any) -> Any:
        return describe_settings(GOOD.but(schedule=schedule))["schedule"]

    slow, fast = (partial(one_cycle, warmup=share) for share in (0.5, 0.1))
    assert described(slow) == described(partial(one_cycle, warmup=0.5))  # on another day, too
    assert described(slow) != described(fast)
    assert json.loads(json.dumps(described(slow)))["keywords"] == {"warmup": 0.5}
    assert describe_settings(GOOD)["schedule"] == "one_cycle"
    # a function among what a partial was given, and an object that says what it does
    nested = described(partial(then, after=one_cycle))
    assert json.loads(json.dumps(nested))["keywords"] == {"after": "one_cycle"}
    assert described(Named(0.5)) == "Named(share=0.5)" != described(Named(0.1))
    for nameless in (Nameless(), partial(then, after=Nameless())):
        with pytest.raises(SettingError, match="which is another one each time: give a function"):
            GOOD.but(schedule=nameless)  # at once, and not when everything is done
