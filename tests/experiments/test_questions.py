"""The questions that the paper leaves open: each differs from its main experiment in one thing."""

import dataclasses
from types import SimpleNamespace

import pytest

from aprune.errors import SettingError
from aprune.experiments import paper, questions
from aprune.experiments.plan import Scale
from aprune.methods import METHODS


def changed(question: str, seeds: int = 5, scale: Scale = "paper") -> dict[str, set[str]]:
    """Name the fields in which the comparisons of a question differ from the main experiment.

    At full size that is figure 5 of the paper.
    """
    main = paper.plan("figure5", "vgg19_bn", seeds=seeds)
    if scale == "small":
        main = questions.SETTINGS["small"].main
    usual = {"sparsities", "also", "tuning_seeds", "seeds", "figure"}  # how, not what
    return {
        name: {
            field.name
            for field in dataclasses.fields(comparison)
            if getattr(comparison, field.name) != getattr(main, field.name)
        }
        - usual
        for name, comparison in questions.ask(question, seeds, scale).items()
    }


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(classes=("apple", "whale", "bus", "tank", "wolf"))
    monkeypatch.setattr(questions, "load_task", lambda name: there)


def test_all_methods_differ_in_nothing_else() -> None:
    assert changed("methods") == {"vgg19_bn": {"methods"}, "resnet18": {"methods", "parent"}}
    asked = questions.ask("methods")
    assert set(asked["vgg19_bn"].methods) == {*METHODS, "dense"}
    assert asked["vgg19_bn"].sparsities == (0.9, 0.95, 0.98, 0.99)


@pytest.mark.usefixtures("few_classes")
def test_rates_are_chosen_once_for_all_repetitions() -> None:
    every = [c for name in questions.QUESTIONS for c in questions.ask(name, seeds=4).values()]
    assert {comparison.tuning_seeds for comparison in every} == {(0,)}


def test_other_parents_differ_in_nothing_else() -> None:
    assert changed("parents") == {key: {"parent"} for key in ("vgg16_bn", "resnet18", "resnet50")}


@pytest.mark.usefixtures("few_classes")
def test_other_tasks_differ_in_nothing_else() -> None:
    assert changed("tasks") == {
        "cifar10-mnist": {"new_task"},
        "mnist-cifar100": {"search_task"},
        "animals-vehicles": {"search_task", "new_task"},
    }
    asked = questions.ask("tasks", seeds=1)
    animals = asked["animals-vehicles"]
    assert animals.search_task.classes == ("whale", "wolf")  # those that there are images of
    assert animals.new_task.classes == ("bus", "tank")
    assert asked["cifar10-mnist"].new_task.size == 32  # a VGG reads nothing smaller
    assert {comparison.new_task.images for comparison in asked.values()} == {500}
    assert animals.seeds == (0,)


def test_other_weights_differ_in_nothing_else() -> None:
    assert changed("starts") == {
        "vgg19_bn": {"methods", "lrs"},
        "vgg19": {"parent", "methods", "lrs"},
    }
    arms = {(arm.method, arm.variant) for arm in questions.ask("starts")["vgg19"].arms()}
    assert ("dense", "fine_tuned") in arms
    assert {("ap", ""), ("ap", "rewound"), ("ap", "fine_tuned"), ("dense", "")} <= arms
    assert changed("bare") == {"vgg19_bn": set()}
    bare = {arm.method for arm in questions.ask("bare")["vgg19_bn"].arms() if arm.variant == "bare"}
    assert bare == {"ap", "random", "imp", "dense"}


def test_the_small_scale_asks_the_same() -> None:
    every = {name: changed(name, scale="small") for name in questions.QUESTIONS}
    assert every == {
        "methods": {"mlp": {"methods"}, "conv_bn": {"methods", "parent"}},
        "parents": {name: {"parent"} for name in ("conv", "conv_bn", "resnet20")},
        "tasks": {"digits-mnist": {"new_task"}, "digits-cifar10": {"new_task", "retrain_steps"}},
        "starts": {"mlp": {"methods", "lrs"}, "conv_bn": {"methods", "lrs", "parent"}},
        "bare": {"mlp": set(), "conv_bn": {"parent"}},
    }


def test_rates_of_the_small_scale_are_chosen_on_repetitions_that_count() -> None:
    for seeds, expected in ((1, (0,)), (2, (0, 1)), (5, (0, 1, 2))):
        (asked, *_) = questions.ask("bare", seeds, "small").values()
        assert (asked.tuning_seeds, len(asked.seeds)) == (expected, seeds)


def test_animals_are_no_vehicles() -> None:
    animals, vehicles = questions._ANIMALS.split(), questions._VEHICLES.split()
    assert (len(animals), len(vehicles)) == (45, 10)
    assert len({*animals, *vehicles}) == 55


def test_an_unknown_question() -> None:
    with pytest.raises(
        SettingError, match="unknown preset 'life': expected one of methods, parents"
    ):
        questions.ask("life")
