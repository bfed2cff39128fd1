"""What a comparison consists of: its settings, and the runs that follow from them."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from aprune.connections import find_connections
from aprune.errors import SettingError, TaskError
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.variant import VARIANTS, is_possible
from aprune.initialise import Scheme
from aprune.maths.select import check_sparsity
from aprune.methods import METHODS, Method, find_method
from aprune.tasks import Split, Task, load_task
from aprune.training import Recipe
from aprune.training.network import outline_for

DENSE = "dense"
_PAPER_LR = 0.1  # c of the paper's c/√i, for which it gives no number
_PAPER_STEPS = 1_600  # likewise; its images are not mixed, which takes some networks longer
_HELD_OUT = 0.2  # of the new task's training images, to choose the learning rate on at the least
_TUNING_SEEDS = 3  # a choice by so few images as one repetition may hold out is a toss-up


@dataclass(frozen=True)
class TaskChoice:
    """What to load as a task; a seed is added when it is loaded.

    Attributes:
        name: Of the data set, as `load_task` takes it.
        classes: How many to draw with the seed, or which; None for all.
        images: How many training images to draw with the seed; None for all.
        size: Height and width to resize to; None leaves them as they are.
        split: `test` for a task of the test images alone, `tuning` for one of the training images
            alone, as `load_task` takes it.

    Example:
        >>> TaskChoice("digits", classes=2, images=20).load(seed=1).classes
        ('4', '8')
    """

    name: str
    classes: int | tuple[int, ...] | tuple[str, ...] | None = None
    images: int | None = None
    size: int | None = None
    split: Split = "train"

    @property
    def draws(self) -> bool:
        """Whether different seeds give different tasks."""
        return isinstance(self.classes, int) or self.images is not None or self.split != "train"

    def load(self, seed: int) -> Task:
        """Load the task that `seed` draws, on the CPU."""
        return load_task(
            self.name,
            classes=self.classes,
            images=self.images,
            seed=seed if self.draws else 0,
            size=self.size,
            split=self.split,
        )


class Arm(NamedTuple):
    """What is compared with the others.

    Attributes:
        method: Its name, or `dense`.
        sparsity: Of its architectures; 0 for the dense parent.
        variant: One of `VARIANTS`; empty for architectures as they were found, with fresh weights that
            fit the mask.
    """

    method: str
    sparsity: float
    variant: str = ""


@dataclass(frozen=True)
class Trial:
    """Settings of a retraining that are chosen for each method and sparsity on training images.

    Attributes:
        lr: Peak learning rate.
        mixup: Share of a second image; None leaves it to the recipe.
    """

    lr: float
    mixup: float | None


Protocol = Literal["fair", "paper"]
Scale = Literal["paper", "small"]


@dataclass(frozen=True)
class Comparison:
    """Which methods to compare, on what, and how.

    Attributes:
        parent: Name of the parent, or `package.module:factory`.
        search_task: Where architectures are searched.
        new_task: Where they are retrained and judged.
        methods: Names of methods (see `aprune methods`), and `dense` for the parent with all its
            connections; the first to be named is the first to be run.
        sparsities: Fractions of connections to remove; one search gives an architecture for each.
        seeds: Each draws classes, images, search and fresh weights: one repetition.
        settings: Methods with settings other than their defaults.
        search_steps: Steps of a search, if not those of `Recipe.for_search`.
        search_batch: Batch size of a search, likewise.
        search_lr: Peak learning rate of a search, likewise.
        retrain_steps: Steps of a retraining, if not those of `Recipe.for_transfer`.
        retrain_batch: Batch size of a retraining, likewise.
        lrs: Learning rates to choose from for each method and sparsity; with one there is no choice,
            and none means half, once and twice that of `Recipe.for_transfer`.
        mixups: Shares of mixed images to choose from along with them, if not that of
            `Recipe.for_transfer`.
        tuning_task: Where they are chosen, if not on the new task: a part of its images.
        tuning_seeds: Repetitions that they are chosen on; none means the first three of `seeds`.
        protocol: How retrainings are done. `fair`: fresh weights that fit the mask, and a learning rate
            chosen for each method. `paper`: weights from N(0, ε²) and one falling rate of plain SGD for
            all, as the paper prints it; where it gives no number, a usual one.
        figure: What the rows are marked with.
        onto: Another parent, to retrain in: it gets connections at random places, with the density of
            each layer from the architectures that were found in `parent`.
        also: Pairs of a method and one of `VARIANTS`, to be retrained beside the others.

    Example:
        >>> digits = TaskChoice("digits")
        >>> Comparison("mlp", digits, digits, sparsities=(0.9, 0.5)).sparsities
        (0.5, 0.9)
    """

    parent: str
    search_task: TaskChoice
    new_task: TaskChoice
    methods: tuple[str, ...] = ("ap", "imp", "random", DENSE)
    sparsities: tuple[float, ...] = (0.95, 0.99)
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: tuple[Method, ...] = ()
    search_steps: int | None = None
    search_batch: int | None = None
    search_lr: float | None = None
    retrain_steps: int | None = None
    retrain_batch: int | None = None
    lrs: tuple[float, ...] = ()
    mixups: tuple[float, ...] = ()
    tuning_task: TaskChoice | None = None
    tuning_seeds: tuple[int, ...] = ()
    onto: str | None = None
    also: tuple[tuple[str, str], ...] = ()
    protocol: Protocol = "fair"
    figure: str = ""

    def __post_init__(self) -> None:
        if self.protocol not in get_args(Protocol):
            raise SettingError(f"unknown protocol {self.protocol!r}: expected fair or paper")
        known = (*METHODS, DENSE)
        for name in self.methods:
            if name not in known:
                raise SettingError(f"unknown method {name!r}: expected one of {', '.join(known)}")
        for method, variant in self.also:
            self._check_variant(method, variant)
        if self.onto == self.parent:
            raise SettingError(
                f"onto is {self.onto!r}, which is the parent: leave it out, or take --also"
                " METHOD.reshuffled for connections in random places"
            )
        if not self.tuning_seeds:
            object.__setattr__(self, "tuning_seeds", self.seeds[:_TUNING_SEEDS])
        if _repeats(self.also):
            raise SettingError(f"also is {self.also!r}: expected each once")
        for what in ("methods", "sparsities", "seeds", "tuning_seeds"):
            values = getattr(self, what)
            if not values or _repeats(values):
                raise SettingError(f"{what} are {values!r}: expected at least one, and each once")
        if not all(lr > 0 and math.isfinite(lr) for lr in self.lrs) or _repeats(self.lrs):
            raise SettingError(f"lrs are {self.lrs!r}: expected numbers above 0, and each once")
        if not all(0 <= share <= 1 for share in self.mixups) or _repeats(self.mixups):
            raise SettingError(
                f"mixups are {self.mixups!r}: expected shares from 0 to 1, and each once"
            )
        if self.search_task.split == "test" and self.search_task.name == self.new_task.name:
            raise SettingError(
                f"the search is on test images of {self.search_task.name}, which the new task may be"
                " judged on: search on split='train'"
            )
        ordered = tuple(sorted(check_sparsity(sparsity) for sparsity in self.sparsities))
        object.__setattr__(self, "sparsities", ordered)

    def _check_variant(self, method: str, variant: str) -> None:
        if variant not in VARIANTS:
            raise SettingError(
                f"unknown variant {variant!r}: expected one of {', '.join(VARIANTS)}"
            )
        if method not in self.methods:
            raise SettingError(
                f"{method}.{variant} is asked for, but {method!r} is not among the methods that are"
                f" compared: {', '.join(self.methods)}"
            )
        if self.onto is not None:
            raise SettingError(
                f"{method}.{variant} is asked for, but what is carried onto another parent is in random"
                " places with fresh weights: leave one of the two out"
            )
        if self.protocol == "paper" and variant != "reshuffled":
            raise SettingError(f"the paper's protocol knows no {variant} architectures: use fair")
        if not is_possible(variant, None if method == DENSE else self.method(method)):
            raise SettingError(
                f"{method} has no {variant} architectures: there is nothing such as"
                f" {VARIANTS[variant].summary}"
            )

    def method(self, name: str) -> Method:
        """Return a method with its settings."""
        given = {method.name: method for method in self.settings}
        return given[name] if name in given else find_method(name)

    def arms(self) -> Iterator[Arm]:
        """Yield every method with each of its sparsities; the dense parent has one, 0."""
        for method in self.methods:
            for sparsity in (0.0,) if method == DENSE else self.sparsities:
                yield Arm(method, sparsity)
                for variant in (variant for owner, variant in self.also if owner == method):
                    yield Arm(method, sparsity, variant)


def _repeats(values: Sequence[object]) -> bool:
    return len(set(values)) < len(values)


class Plan:
    """Makes the runs of a comparison; every task is loaded once and stays on the device."""

    def __init__(self, comparison: Comparison, device: torch.device) -> None:
        self.comparison, self.device = comparison, device
        self._tasks: dict[tuple[TaskChoice, int], Task] = {}
        self._for_tuning: dict[int, Task] = {}
        self._networks: dict[tuple[str, tuple[int, int, int], int], nn.Module] = {}
        self._retrained = comparison.onto or comparison.parent

    def trials(self) -> list[Trial]:
        """Return all that each method may choose from, in the order in which it was given."""
        c = self.comparison
        lrs = c.lrs
        if c.protocol == "paper":
            return [Trial(_PAPER_LR, None)]
        if not lrs:
            usual = self._recipe(self._task(c.new_task, c.seeds[0])).lr
            lrs = (usual / 2, usual, usual * 2)
        return [Trial(lr, mixup) for lr, mixup in product(lrs, c.mixups or (None,))]

    def search(self, method: str, seed: int) -> SearchRun | None:
        """Return the search of a method; the dense parent has none."""
        c = self.comparison
        if method == DENSE:
            return None
        task, weights = self._task(c.search_task, seed), (method, "fine_tuned") in c.also
        recipe = self._search_recipe(task)
        return SearchRun(c.parent, c.method(method), task, recipe, c.sparsities, seed, weights)

    def _search_recipe(self, task: Task) -> Recipe:
        c = self.comparison
        usual = Recipe.for_search(self._network(task, c.parent), task)
        return usual.but(steps=c.search_steps, batch=c.search_batch, lr=c.search_lr)

    def tuning(self, arm: Arm, seed: int, trial: Trial) -> TransferRun:
        """Return a retraining that never sees the test images: other training images judge it."""
        if seed not in self._for_tuning:
            self._for_tuning[seed] = self._tuning_task(seed)
        return self._transfer(arm, seed, trial, self._for_tuning[seed])

    def _tuning_task(self, seed: int) -> Task:
        """Return the task that settings are chosen by.

        It is judged on the training images that the new task leaves unused; if these are too few, on
        some of those that it has.
        """
        choice = self.comparison.tuning_task or self.comparison.new_task
        if choice.split == "train" and choice.images is not None:
            with contextlib.suppress(TaskError):  # there may be none left
                task = self._task(replace(choice, split="tuning"), seed)
                if len(task.test_labels) >= _HELD_OUT * len(task.train_labels):
                    return task
        return self._task(choice, seed).hold_out(_HELD_OUT, seed)

    def final(self, arm: Arm, seed: int, trial: Trial) -> TransferRun:
        """Return a retraining whose accuracy counts."""
        task = self._task(self.comparison.new_task, seed)
        return self._transfer(arm, seed, trial, task)

    def count_connections(self, task: Task) -> int:
        """Return the number of connections of the dense parent that is retrained."""
        return sum(
            p.numel() for p in find_connections(self._network(task, self._retrained)).values()
        )

    def count_shared_classes(self) -> int:
        """Return how many classes a new task has in common with its search, if that is no purpose."""
        c, seed = self.comparison, self.comparison.seeds[0]
        if c.new_task.split == "test" or c.new_task.name != c.search_task.name:
            return 0
        found, new = (self._task(choice, seed).classes for choice in (c.search_task, c.new_task))
        return len(set(found) & set(new))

    def _transfer(self, arm: Arm, seed: int, trial: Trial, task: Task) -> TransferRun:
        recipe = self._recipe(task).but(lr=trial.lr, mixup=trial.mixup)
        init: Scheme = "normal" if self.comparison.protocol == "paper" else "auto"
        search = self.search(arm.method, seed)
        plain = TransferRun(self._retrained, search, arm.sparsity, task, recipe, seed, init=init)
        if not arm.variant:
            return plain
        varied = replace(plain, **VARIANTS[arm.variant].changes)
        learnt = search is None and varied.start == "fine_tuned"
        return replace(varied, before=self._dense(seed)) if learnt else varied

    def _dense(self, seed: int) -> TransferRun:
        """Return the dense parent's training on the task of the search, as long as a search."""
        task = self._task(self.comparison.search_task, seed)
        return TransferRun(self.comparison.parent, None, 0.0, task, self._search_recipe(task), seed)

    def _recipe(self, task: Task) -> Recipe:
        c = self.comparison
        usual = Recipe.for_transfer(self._network(task, self._retrained), task)
        if c.protocol == "paper":
            usual = Recipe(
                steps=_PAPER_STEPS,
                batch=usual.batch,
                lr=_PAPER_LR,
                schedule="inverse_sqrt",
                momentum=0.0,
                clip=None,
            )
        return usual.but(steps=c.retrain_steps, batch=c.retrain_batch)

    def _task(self, choice: TaskChoice, seed: int) -> Task:
        key = (choice, seed if choice.draws else 0)
        if key not in self._tasks:
            self._tasks[key] = choice.load(seed).to(self.device)
        return self._tasks[key]

    def _network(self, task: Task, parent: str) -> nn.Module:
        """Return a parent for a look at its layers."""
        key = (parent, task.shape, task.num_classes)
        if key not in self._networks:
            self._networks[key] = outline_for(parent, task)
        return self._networks[key]
