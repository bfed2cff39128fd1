"""What the paper leaves open, as comparisons: other methods, parents, less similar tasks, other weights.

Each question is a few comparisons. They differ in one thing each from figure 5 of the paper: ten classes
of CIFAR-100 with 500 images, with architectures from CIFAR-10.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from aprune.errors import SettingError
from aprune.experiments.plan import DENSE, Comparison, TaskChoice
from aprune.methods import METHODS
from aprune.tasks import load_task

_METHODS = ("ap", "random", "imp", "dense")
_IMAGES = 500
_SIZE = 32  # of all images, so that a VGG can read digits too

# coarse classes of CIFAR-100 by the names of their classes
_ANIMALS = """
beaver dolphin otter seal whale aquarium_fish flatfish ray shark trout bee beetle butterfly caterpillar
cockroach bear leopard lion tiger wolf camel cattle chimpanzee elephant kangaroo fox porcupine possum
raccoon skunk crab lobster snail spider worm crocodile dinosaur lizard snake turtle hamster mouse rabbit
shrew squirrel
"""
_VEHICLES = """
bicycle bus motorcycle pickup_truck train lawn_mower rocket streetcar tank tractor
"""


def _base(seeds: int) -> Comparison:
    return Comparison(
        "vgg19_bn",
        TaskChoice("cifar10"),
        TaskChoice("cifar100", classes=10, images=_IMAGES),
        methods=_METHODS,
        sparsities=(0.95, 0.99),
        seeds=tuple(range(seeds)),
        tuning_seeds=(0,),  # thousands of training images are left over to choose by
    )


def _methods(seeds: int) -> dict[str, Comparison]:
    """Return every method there is, on two parents."""
    base = replace(_base(seeds), methods=(*METHODS, DENSE))
    return {
        "vgg19_bn": replace(base, sparsities=(0.9, 0.95, 0.98, 0.99)),
        "resnet18": replace(base, parent="resnet18"),
    }


def _parents(seeds: int) -> dict[str, Comparison]:
    """Return the same tasks with other parents."""
    parents = ("vgg16_bn", "resnet18", "resnet50")
    return {parent: replace(_base(seeds), parent=parent) for parent in parents}


def _tasks(seeds: int) -> dict[str, Comparison]:
    """Return the same parent on tasks that have less to do with each other."""
    base = _base(seeds)
    digits = TaskChoice("mnist", size=_SIZE)
    return {
        "cifar10-mnist": replace(base, new_task=replace(digits, images=_IMAGES)),
        "mnist-cifar100": replace(base, search_task=digits),
        "animals-vehicles": replace(
            base,
            search_task=TaskChoice("cifar100", classes=_present(_ANIMALS)),
            new_task=TaskChoice("cifar100", classes=_present(_VEHICLES), images=_IMAGES),
        ),
    }


def _starts(seeds: int) -> dict[str, Comparison]:
    """Return the same architectures from other weights, and what keeping the weights is worth.

    Weights that were trained before want to be moved less: there are smaller rates to choose from.
    """
    ways = ("normal", "he", "he_density", "he_fan_in", "rewound", "fine_tuned")
    parents = ("vgg19_bn", "vgg19")
    return {
        parent: replace(
            _base(seeds),
            parent=parent,
            methods=("ap", "dense"),
            also=(*(("ap", way) for way in ways), ("dense", "fine_tuned")),
            lrs=(0.02, 0.05, 0.1, 0.2),
        )
        for parent in parents
    }


def _bare(seeds: int) -> dict[str, Comparison]:
    """Return architectures with one weight a layer and its negative."""
    compared = ("ap", "random", "imp", "dense")
    also = tuple((method, "bare") for method in compared)
    return {"vgg19_bn": replace(_base(seeds), methods=compared, also=also)}


def _present(names: str) -> tuple[str, ...]:
    """Return those of some classes of CIFAR-100 that there are images of."""
    there = set(load_task("cifar100").classes)
    return tuple(name for name in names.split() if name in there)


QUESTIONS: Mapping[str, Callable[[int], dict[str, Comparison]]] = MappingProxyType(
    {
        "methods": _methods,
        "parents": _parents,
        "tasks": _tasks,
        "starts": _starts,
        "bare": _bare,
    }
)
"""From the name of a question to its comparisons, for so many seeds."""


def ask(question: str, seeds: int = 3) -> dict[str, Comparison]:
    """Return the comparisons of a question, by name.

    Example:
        >>> list(ask("parents", seeds=2))
        ['vgg16_bn', 'resnet18', 'resnet50']
    """
    if question not in QUESTIONS:
        raise SettingError(f"unknown preset {question!r}: expected one of {', '.join(QUESTIONS)}")
    return QUESTIONS[question](seeds)
