"""Retrainings of an experiment, done together."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from aprune.architecture import Architecture
from aprune.bulk import transfer_many
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
    network gives one output for all images in the end is marked as `dead`. What another process is at is
    left to it, and waited for at the end.

    Args:
        runs: What to do; what was done before is looked up.
        store: Where results are kept, and architectures come from.
        device: Where to train.
        time_limit: As `transfer_many` takes it; with 0 everything is only looked up.
        total: How many there are in all, if these are a part of them.

    Yields:
        Each run with its result. What the time did not suffice for is missing.
    """
    clock, starts, runs = Clock(time_limit), Starts(store, device), list(runs)

    def do(todo: list[TransferRun], claims: Claims) -> Iterator[tuple[TransferRun, Result]]:
        _search_again(todo, store, device, clock)
        found: dict[TransferRun, Architecture | None] = {}
        for run in todo:
            if not clock.may_start("search"):  # as it may have to be, if another process gave it up
                break
            found[run] = (
                run.search.architecture(run.sparsity, store, device) if run.search else None
            )
            if run.search is not None and found[run] is None:
                del found[run]
                yield run, keep(store, run, _result(failed="the search died"), device)
        ready: dict[Retraining, TransferRun] = {}
        for run, architecture in _move_connections(found).items():
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
            ready[retraining] = run
        together = transfer_many(
            list(ready),
            device=device,
            total=total or len(runs),
            progress=False,
            time_limit=clock.left,
            may_start=lambda retraining: claims.take(ready[retraining]),
        )
        while (pair := _next_of(together)) is not None:
            run = ready[pair[0]]
            with watched(run.recipe.batch):
                result = _result_of(pair[1], run.task)
            yield run, keep(store, run, result, device)

    yield from share(runs, store, do)


def _search_again(
    todo: Sequence[TransferRun], store: Store, device: torch.device, clock: Clock
) -> None:
    """Do the searches whose architectures are wanted and were not kept, but those that others are at.

    Results travel from machine to machine, architectures are large. So processes share these searches
    too; what another one is at is waited for when it is needed.
    """

    def lacks(run: TransferRun) -> bool:
        wanted = None if run.search is None else run.search.describe_architecture(run.sparsity)
        return wanted is not None and not store.has_architecture(wanted)

    for run in todo:
        search = run.search
        if search is None or not lacks(run) or (search.look(store) or {}).get("failed"):
            continue
        if not clock.may_start("search"):
            return
        with store.claim(search.describe()) as mine:
            if mine and lacks(run):
                with clock.timing("search"):
                    search.do(store, device)


def _move_connections(
    found: Mapping[TransferRun, Architecture | None],
) -> dict[TransferRun, Architecture | None]:
    """Move connections within their layers, or onto another parent, where a run asks for it.

    Each is moved once, however many learning rates it is tried with, and several at a time: for a
    VGG19 it takes a second, in which a GPU would wait.
    """
    alike = {run: (run.search, run.sparsity, run.seed, run.parent, run.reshuffled) for run in found}
    first = {which: run for run, which in reversed(alike.items())}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        moved = dict(
            zip(first, pool.map(lambda run: _move(run, found[run]), first.values()), strict=True)
        )
    return {run: moved[which] for run, which in alike.items()}


def _move(run: TransferRun, found: Architecture | None) -> Architecture | None:
    if found is None or run.search is None:
        return None
    if run.parent != run.search.parent:
        shapes = shapes_of(find_connections(outline_for(run.parent, run.task)))
        seed = derive_seed(run.seed, "onto")
        return found.spread_onto(shapes, sparsity=run.sparsity, seed=seed)
    return found.shuffle(derive_seed(run.seed, "reshuffle")) if run.reshuffled else found


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
