"""The two kinds of work that experiments consist of, each done once and then looked up."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aprune.architecture import Architecture
from aprune.bulk import transfer_many
from aprune.connections import find_connections, shapes_of
from aprune.errors import SearchError, TrainingError
from aprune.experiments.store import Store
from aprune.finding import search
from aprune.initialise import Scheme
from aprune.maths.seed import derive_seed
from aprune.methods import Method
from aprune.progress import Clock
from aprune.retraining import Retraining
from aprune.tasks import Task
from aprune.training import Recipe, describe_settings
from aprune.training.network import outline_for

_VERSION = 3  # raised when the same settings come to mean something else


@dataclass(frozen=True)
class SearchRun:
    """One search for architectures of several sparsities.

    The device is no part of its description, so that what a GPU has done can be looked up
    everywhere; the result says where it was done.

    Attributes:
        parent: Name of the parent.
        method: How connections are chosen, with all settings.
        task: Where to search.
        recipe: How weights are trained on the way.
        sparsities: Of the architectures, in rising order; a search is shaped by all of them.
        seed: Of everything random.
    """

    parent: str
    method: Method
    task: Task
    recipe: Recipe
    sparsities: tuple[float, ...]
    seed: int

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the result, as JSON can hold it."""
        trains = self.method.trains or self.method.looks
        return {
            "kind": "search",
            "version": _VERSION,
            "parent": self.parent,
            "method": {"name": self.method.name, **describe_settings(self.method)},
            "task": dict(self.task.provenance),
            "recipe": describe_settings(self.recipe) if trains else None,
            "sparsities": list(self.sparsities),
            "seed": self.seed,
        }

    def look(self, store: Store) -> dict[str, Any] | None:
        """Return the result if the search was done, even if its architectures were not kept."""
        return store.get(self.describe())

    def do(self, store: Store, device: torch.device) -> dict[str, Any]:
        """Search, and keep the architectures first and then the result.

        A search that dies is a result too: `failed` then holds the reason.
        """
        begin = time.perf_counter()
        result: dict[str, Any] = {
            "failed": None,
            "steps": 0,
            "loss": None,
            "curves": [],
            "accuracy": None,
            "connections": [0] * len(self.sparsities),
            "empty_layers": [0] * len(self.sparsities),
            "densities": [{} for _ in self.sparsities],
        }
        try:
            found = search(
                self.parent,
                self.task,
                self.method,
                sparsities=self.sparsities,
                seed=self.seed,
                recipe=self.recipe,
                device=device,
                progress=False,
            )
        except SearchError as error:
            result["failed"] = str(error)
        else:
            for sparsity, architecture in zip(self.sparsities, found.architectures, strict=True):
                store.put_architecture(self._describe_architecture(sparsity), architecture)
            result |= {
                "steps": found.steps,
                "loss": found.curves[-1].final() if found.curves else None,
                "curves": [curve.thinned() for curve in found.curves],
                "accuracy": found.accuracy,
                "connections": [architecture.kept for architecture in found.architectures],
                "empty_layers": [len(a.empty_layers()) for a in found.architectures],
                "densities": [
                    {layer.name: round(layer.density, 6) for layer in a.layers()}
                    for a in found.architectures
                ],
            }
        result["seconds"] = round(time.perf_counter() - begin, 3)
        return _keep(store, self, result, device)

    def architecture(
        self, sparsity: float, store: Store, device: torch.device
    ) -> Architecture | None:
        """Return an architecture, searching for it if it is not there; None if the search dies."""
        kept = store.get_architecture(self._describe_architecture(sparsity))
        if kept is None and not (self.look(store) or {}).get("failed"):
            self.do(store, device)
            kept = store.get_architecture(self._describe_architecture(sparsity))
        return kept

    def _describe_architecture(self, sparsity: float) -> dict[str, Any]:
        return {"search": self.describe(), "sparsity": sparsity}


@dataclass(frozen=True)
class TransferRun:
    """One retraining.

    Attributes:
        parent: Name of the parent that is retrained. If it is not the one that was searched, it gets
            the densities of the layers alone.
        search: Where the architecture comes from; None retrains the dense parent.
        sparsity: Of the architecture; 0 for the dense parent.
        task: The new task; its test images are what the accuracy is of.
        recipe: How weights are trained.
        seed: Of the fresh weights and of the order of images.
        reshuffled: Whether the connections are moved to random places within each layer before.
        init: How fresh weights are drawn.
    """

    parent: str
    search: SearchRun | None
    sparsity: float
    task: Task
    recipe: Recipe
    seed: int
    reshuffled: bool = False
    init: Scheme = "auto"

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the result, as JSON can hold it."""
        # what was done before there was a choice keeps its name
        choice: dict[str, Any] = {"reshuffled": True} if self.reshuffled else {}
        choice |= {"init": self.init} if self.init != "auto" else {}
        return {
            "kind": "transfer",
            "version": _VERSION,
            "parent": self.parent,
            "search": self.search.describe() if self.search else None,
            "sparsity": self.sparsity,
            "task": dict(self.task.provenance),
            "recipe": describe_settings(self.recipe),
            "seed": self.seed,
            **choice,
        }

    def look(self, store: Store) -> dict[str, Any] | None:
        """Return the result if the retraining was done."""
        return store.get(self.describe())


def retrain_all(
    runs: Iterable[TransferRun],
    store: Store,
    device: torch.device,
    time_limit: float | None = None,
) -> Iterator[tuple[TransferRun, dict[str, Any]]]:
    """Do retrainings together, each once, and keep each result as soon as it is there.

    A retraining that diverges has no accuracy: that is None, and `failed` holds the reason.

    Args:
        runs: What to do; what was done before is looked up.
        store: Where results are kept, and architectures come from.
        device: Where to train.
        time_limit: As `transfer_many` takes it; with 0 everything is only looked up.

    Yields:
        Each run with its result. What the time did not suffice for is missing.
    """
    clock = Clock(time_limit)
    todo: dict[Retraining, TransferRun] = {}
    for run in dict.fromkeys(runs):
        if (known := run.look(store)) is not None:
            yield run, known
        elif clock.may_start("search"):  # an architecture that was not kept is searched again
            found = run.search.architecture(run.sparsity, store, device) if run.search else None
            if run.search is not None and found is None:
                yield run, _keep(store, run, _result(failed="the search died"), device)
            else:
                found = _prepare(run, found)
                retraining = Retraining(found, run.parent, run.task, run.seed, run.recipe, run.init)
                todo[retraining] = run
    together = transfer_many(list(todo), device=device, progress=False, time_limit=clock.left)
    for retraining, trained in together:
        if isinstance(trained, TrainingError):
            result = _result(failed=str(trained))
        else:
            result = _result(
                accuracy=trained.accuracy,
                train_loss=trained.curve.final(),
                curve=trained.curve.thinned(),
            )
        yield todo[retraining], _keep(store, todo[retraining], result, device)


def _prepare(run: TransferRun, found: Architecture | None) -> Architecture | None:
    """Move connections within their layers, or onto another parent, if a run asks for it."""
    if found is None or run.search is None:
        return None
    if run.parent != run.search.parent:
        shapes = shapes_of(find_connections(outline_for(run.parent, run.task)))
        seed = derive_seed(run.seed, "onto")
        return found.spread_onto(shapes, sparsity=run.sparsity, seed=seed)
    return found.shuffle(derive_seed(run.seed, "reshuffle")) if run.reshuffled else found


def _result(
    failed: str | None = None,
    accuracy: float | None = None,
    train_loss: float | None = None,
    curve: Sequence[float] = (),
) -> dict[str, Any]:
    return {
        "failed": failed,
        "accuracy": accuracy,
        "train_loss": train_loss,
        "curve": list(curve),
    }


def _keep(
    store: Store, run: SearchRun | TransferRun, result: Mapping[str, Any], device: torch.device
) -> dict[str, Any]:
    whole = {**result, "device": device.type}
    store.put(run.describe(), whole)
    return whole
