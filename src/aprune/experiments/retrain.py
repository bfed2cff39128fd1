"""Retrainings of an experiment, done together."""

import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import nn

from aprune.architecture import Architecture
from aprune.bulk import shape_of, transfer_many
from aprune.connections import find_connections, shapes_of
from aprune.errors import NetworkWarning, TrainingError
from aprune.experiments.run import SearchRun, TransferRun, keep
from aprune.experiments.sharing import Claims, Result, share
from aprune.experiments.store import Store
from aprune.initialise import initialise
from aprune.maths.seed import derive_seed
from aprune.progress import Clock
from aprune.retraining import Result as Retrained
from aprune.retraining import Retraining, transfer
from aprune.tasks import Task
from aprune.trained import Trained
from aprune.training.batch import Normalise
from aprune.training.checkpoint import remove_checkpoint
from aprune.training.device import dtype_of, watched
from aprune.training.evaluate import gives_one_output
from aprune.training.network import network_for, outline_for

T = TypeVar("T")
_SEEN = 64  # images that a network is shown to see whether it is alive


def retrain_all(
    runs: Iterable[TransferRun],
    store: Store,
    device: torch.device,
    time_limit: float | None = None,
    total: int | None = None,
) -> Iterator[tuple[TransferRun, Result]]:
    """Do retrainings together, each once, and keep each result as soon as it is there.

    A retraining that diverges has no accuracy: that is None, and `failed` holds the reason. One whose
    network gives one output for all images in the end is marked as `dead`. Where layers have other
    shapes than the search's, the result also says how many `connections` and `empty_layers` there were.
    What another process is at is left to it, and waited for at the end.

    Args:
        runs: What to do; what was done before is looked up.
        store: Where results are kept, and architectures come from.
        device: Where to train.
        time_limit: As `transfer_many` takes it; with 0 everything is only looked up.
        total: How many there are in all, if these are a part of them.

    Yields:
        Each run with its result. What the time did not suffice for is missing.
    """
    clock, runs = Clock(time_limit), list(runs)
    found, starts = Found(store, device), Starts(store, device)

    def do(todo: list[TransferRun], claims: Claims) -> Iterator[tuple[TransferRun, Result]]:
        _search_again(todo, store, device, clock)
        todo = _make_starts(todo, starts, clock)
        begun: dict[Retraining, TransferRun] = {}
        lost: list[TransferRun] = []

        def begin() -> Iterator[Retraining]:
            for run in _shape_by_shape(todo):
                # a search has to be done here if another process gave it up
                if _lacks(run, store) and not clock.may_start("search"):
                    continue
                if not claims.take(run):
                    continue
                architecture = found.get(run)
                if run.search is not None and architecture is None:
                    lost.append(run)
                    continue
                retraining = Retraining(
                    architecture,
                    run.parent,
                    run.task,
                    run.seed,
                    run.recipe,
                    run.init,
                    start_from=starts.get(run),
                    bare=run.bare,
                    checkpoint=store.checkpoint(run.describe()),
                )
                begun[retraining] = run
                yield retraining

        together = transfer_many(
            begin(),
            device=device,
            total=total or len(runs),
            progress=False,
            time_limit=clock.left,
        )
        while (pair := _next_of(together)) is not None:
            run = begun.pop(pair[0])
            with watched(run.recipe.batch):
                result = _result_of(pair[1], run.task)
            if run.elsewhere and (fitted := pair[0].architecture) is not None:
                empty = len(fitted.empty_layers())
                result |= {"connections": fitted.kept, "empty_layers": empty}
            yield run, keep(store, run, result, device)
        for run in lost:
            yield run, keep(store, run, _result(failed="the search died"), device)

    yield from share(runs, store, do)


def _shape_by_shape(runs: Sequence[TransferRun]) -> list[TransferRun]:
    """Put those together that can share a captured step, otherwise in the order given."""
    groups: dict[Hashable, list[TransferRun]] = {}
    for run in runs:
        shape = shape_of(run.parent, run.search is None, run.task, run.recipe, bare=run.bare)
        groups.setdefault(shape, []).append(run)
    return [run for group in groups.values() for run in group]


def _search_again(
    todo: Sequence[TransferRun], store: Store, device: torch.device, clock: Clock
) -> None:
    """Do the searches whose architectures are wanted and were not kept, but those that others are at.

    Results travel from machine to machine, architectures are large. So processes share these searches
    too; what another one is at is waited for when it is needed.
    """
    for run in todo:
        search = run.search
        if search is None or not _lacks(run, store):
            continue
        if not clock.may_start("search"):
            return
        with store.claim(search.describe()) as mine:
            if mine and _lacks(run, store):
                with clock.timing("search"):
                    search.do(store, device)


def _lacks(run: TransferRun, store: Store) -> bool:
    """Tell whether the search of a run has to be done, for the first time or again."""
    search = run.search
    if search is None or store.has_architecture(search.describe_architecture(run.sparsity)):
        return False
    return not (search.look(store) or {}).get("failed")


def _make_starts(todo: Sequence[TransferRun], starts: "Starts", clock: Clock) -> list[TransferRun]:
    """Train the dense parents that some runs start from; return the runs that can begin then.

    It comes before any of them is claimed: one that starts from another would wait for itself.
    """
    ready = []
    for run in todo:
        if run.before is not None:
            if not clock.may_start("start"):
                continue
            with clock.timing("start"):
                starts.get(run)
        ready.append(run)
    return ready


class Found:
    """The architectures that searches found, moved where a run asks for it.

    For a VGG19 that can take a second. So the last one is kept: the next run often has the same
    architecture, with another learning rate.
    """

    def __init__(self, store: Store, device: torch.device) -> None:
        self._store, self._device = store, device
        self._last: tuple[Hashable, Architecture | None] = (None, None)

    def get(self, run: TransferRun) -> Architecture | None:
        """Return what a run retrains, searching if need be; None if it is dense or the search dies."""
        if run.search is None:
            return None
        which = (run.search, run.sparsity, run.seed, run.parent, run.reshuffled)
        if which != self._last[0]:
            found = run.search.architecture(run.sparsity, self._store, self._device)
            self._last = (which, None if found is None else _move(run, run.search, found))
        return self._last[1]


def _move(run: TransferRun, search: SearchRun, found: Architecture) -> Architecture:
    """Move connections within their layers, or to where layers have other shapes.

    They are as many as everywhere at this sparsity: methods are compared at equal complexity.
    """
    if run.reshuffled:
        found = found.shuffle(derive_seed(run.seed, "reshuffle"))
    if not run.elsewhere:
        return found
    shapes = shapes_of(find_connections(outline_for(run.parent, run.task)))
    if run.parent == search.parent:
        return found.adapt(shapes, sparsity=run.sparsity, seed=run.seed)
    seed = derive_seed(run.seed, "onto")
    return found.spread_onto(shapes, sparsity=run.sparsity, seed=seed)


def _next_of(done: Iterator[T]) -> T | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NetworkWarning)  # the result tells it
        return next(done, None)


def _result_of(trained: Retrained | TrainingError, task: Task) -> Result:
    if isinstance(trained, TrainingError):
        return _result(failed=str(trained))
    result = _result(
        accuracy=trained.accuracy,
        train_loss=trained.curve.final(),
        curve=trained.curve.thinned(),
    )
    return result | ({"dead": True} if _is_dead(trained.model, task) else {})


def _is_dead(model: nn.Module, task: Task) -> bool:
    device = next(model.parameters()).device
    some = task.test_images[:_SEEN].to(device)  # as it was judged, so that nothing else is read
    if bool((some == some[:1]).all()):
        return False  # there is nothing to tell apart
    normalise = Normalise(task.mean.to(device), task.std.to(device), dtype_of(model))
    return gives_one_output(model, normalise(some))


def _result(
    failed: str | None = None,
    accuracy: float | None = None,
    train_loss: float | None = None,
    curve: Sequence[float] = (),
) -> Result:
    return {
        "failed": failed,
        "accuracy": accuracy,
        "train_loss": train_loss,
        "curve": list(curve),
    }


class Starts:
    """The weights that retrainings start from, if not from fresh ones; each is made once."""

    def __init__(self, store: Store, device: torch.device) -> None:
        self._store, self._device = store, device
        self._first: dict[tuple[str, int], Trained] = {}

    def get(self, run: TransferRun) -> Trained | None:
        """Return a network, or None for fresh weights."""
        if run.start == "fresh":
            return None
        if run.before is not None:
            return self._dense(run.before)
        assert run.search is not None
        if run.start == "rewound":
            return self._rewound(run.search)
        return run.search.network(run.sparsity, self._store, self._device)

    def _rewound(self, search: SearchRun) -> Trained:
        """Draw the weights that a search began with once more."""
        which = (search.parent, search.seed)
        if which not in self._first:
            model = network_for(
                search.parent, search.task, self._device, seed=search.seed, weights=False
            )
            initialise(model, scheme="he", seed=search.seed)
            self._first[which] = Trained.of(model.cpu(), search.task, {})
        return self._first[which]

    def _dense(self, run: TransferRun) -> Trained:
        """Train the dense parent on the old task, unless that was done before."""
        store, description = self._store, run.describe()

        def look() -> Trained | None:
            return store.get_network(description, run.parent)

        def do() -> Trained:
            result = transfer(
                None,
                run.parent,
                run.task,
                seed=run.seed,
                recipe=run.recipe,
                device=self._device,
                progress=False,
                checkpoint=store.checkpoint(description),
            )
            store.put_network(description, result.trained)
            remove_checkpoint(store.checkpoint(description))
            kept = look()
            assert kept is not None
            return kept

        return look() or store.do_once(description, look, do)
