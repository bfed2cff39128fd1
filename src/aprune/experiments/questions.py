"""What the paper leaves open, as comparisons: other methods, parents, less similar tasks, other weights.

Each question is a few comparisons, which differ in one thing each from a main experiment. At full size
that is figure 5 of the paper: architectures from CIFAR-10, ten classes of CIFAR-100 with 500 images. On
the small scale they come from the digits 0 to 4, and go to the digits 5 to 9 with 50 images.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from aprune.errors import SettingError
from aprune.experiments.plan import DENSE, Comparison, Scale, TaskChoice
from aprune.methods import METHODS
from aprune.tasks import load_task

Comparisons = dict[str, Comparison]

_METHODS = ("ap", "random", "imp", "dense")
_STARTS = ("normal", "he", "he_density", "he_fan_in", "rewound", "fine_tuned")
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


def _large_tasks(main: Comparison) -> Comparisons:
    digits = TaskChoice("mnist", size=_SIZE)
    return {
        "cifar10-mnist": replace(main, new_task=replace(digits, images=_IMAGES)),
        "mnist-cifar100": replace(main, search_task=digits),
        "animals-vehicles": replace(
            main,
            search_task=TaskChoice("cifar100", classes=_present(_ANIMALS)),
            new_task=TaskChoice("cifar100", classes=_present(_VEHICLES), images=_IMAGES),
        ),
    }


def _small_tasks(main: Comparison) -> Comparisons:
    images = replace(main.new_task, name="mnist", size=8)
    photographs = TaskChoice("cifar10", images=_IMAGES, size=8)
    return {
        "digits-mnist": replace(main, new_task=images),
        # what takes photographs longer is left to the recipe
        "digits-cifar10": replace(main, new_task=photographs, retrain_steps=None),
    }


@dataclass(frozen=True)
class Setting:
    """Where the questions are asked.

    Attributes:
        main: The experiment that all others differ from.
        methods: On which parents all methods are compared, and at which sparsities.
        parents: Other parents.
        tasks: From the main experiment to those on tasks that have less to do with each other.
        starts: On which parents other weights are tried.
        low_rates: Offered there in place of the usual ones: weights that were trained before want to be
            moved less.
        bare: On which parents bare architectures are tried.
    """

    main: Comparison
    methods: Mapping[str, tuple[float, ...]]
    parents: tuple[str, ...]
    tasks: Callable[[Comparison], Comparisons]
    starts: tuple[str, ...]
    low_rates: tuple[float, ...]
    bare: tuple[str, ...]


_ALL_METHODS = (0.9, 0.95, 0.98, 0.99)
_DIGITS = TaskChoice("digits", classes=(0, 1, 2, 3, 4))

SETTINGS: Mapping[Scale, Setting] = MappingProxyType(
    {
        "paper": Setting(
            main=Comparison(
                "vgg19_bn",
                TaskChoice("cifar10"),
                TaskChoice("cifar100", classes=10, images=_IMAGES),
                methods=_METHODS,
                tuning_seeds=(0,),  # thousands of training images are left over to choose by
            ),
            methods={"vgg19_bn": _ALL_METHODS, "resnet18": (0.95, 0.99)},
            parents=("vgg16_bn", "resnet18", "resnet50"),
            tasks=_large_tasks,
            starts=("vgg19_bn", "vgg19"),
            low_rates=(0.02, 0.05, 0.1, 0.2),
            bare=("vgg19_bn",),
        ),
        # for a CPU, in minutes
        "small": Setting(
            main=Comparison(
                "mlp",
                _DIGITS,
                TaskChoice("digits", classes=(5, 6, 7, 8, 9), images=50),
                methods=_METHODS,
                search_steps=500,
                retrain_steps=400,
                lrs=(0.05, 0.1, 0.2, 0.4, 0.8),
            ),
            methods={"mlp": _ALL_METHODS, "conv_bn": _ALL_METHODS},
            parents=("conv", "conv_bn", "resnet20"),
            tasks=_small_tasks,
            starts=("mlp", "conv_bn"),
            low_rates=(0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
            bare=("mlp", "conv_bn"),
        ),
    }
)


def _methods(setting: Setting) -> Comparisons:
    """Return every method there is."""
    main = replace(setting.main, methods=(*METHODS, DENSE))
    return {
        parent: replace(main, parent=parent, sparsities=sparsities)
        for parent, sparsities in setting.methods.items()
    }


def _parents(setting: Setting) -> Comparisons:
    """Return the same tasks with other parents."""
    return {parent: replace(setting.main, parent=parent) for parent in setting.parents}


def _tasks(setting: Setting) -> Comparisons:
    """Return the same parent on tasks that have less to do with each other."""
    return setting.tasks(setting.main)


def _starts(setting: Setting) -> Comparisons:
    """Return the same architectures from other weights, and what keeping the weights is worth."""
    main = replace(
        setting.main,
        methods=("ap", "dense"),
        also=(*(("ap", way) for way in _STARTS), ("dense", "fine_tuned")),
        lrs=setting.low_rates,
    )
    return {parent: replace(main, parent=parent) for parent in setting.starts}


def _bare(setting: Setting) -> Comparisons:
    """Return architectures with one weight a layer and its negative."""
    main = replace(setting.main, also=tuple((method, "bare") for method in _METHODS))
    return {parent: replace(main, parent=parent) for parent in setting.bare}


def _present(names: str) -> tuple[str, ...]:
    """Return those of some classes of CIFAR-100 that there are images of."""
    there = set(load_task("cifar100").classes)
    return tuple(name for name in names.split() if name in there)


QUESTIONS: Mapping[str, Callable[[Setting], Comparisons]] = MappingProxyType(
    {
        "methods": _methods,
        "parents": _parents,
        "tasks": _tasks,
        "starts": _starts,
        "bare": _bare,
    }
)
"""From the name of a question to its comparisons in a setting."""


def ask(question: str, seeds: int = 3, scale: Scale = "paper") -> Comparisons:
    """Return the comparisons of a question, by name.

    Args:
        question: One of `QUESTIONS`.
        seeds: Repetitions.
        scale: `paper`, or `small` for a CPU.

    Example:
        >>> list(ask("parents", seeds=2))
        ['vgg16_bn', 'resnet18', 'resnet50']
        >>> ask("bare", scale="small")["mlp"].new_task.name
        'digits'
    """
    if question not in QUESTIONS:
        raise SettingError(f"unknown preset {question!r}: expected one of {', '.join(QUESTIONS)}")
    setting = SETTINGS[scale]
    main, repetitions = setting.main, tuple(range(seeds))
    repeated = replace(main, seeds=repetitions, tuning_seeds=main.tuning_seeds[:seeds])
    return QUESTIONS[question](replace(setting, main=repeated))
