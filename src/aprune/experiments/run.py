"""The two kinds of work that experiments consist of, each done once and then looked up."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from aprune.architecture import Architecture
from aprune.errors import NetworkWarning, SearchError
from aprune.experiments.store import Store
from aprune.finding import search
from aprune.initialise import Scheme
from aprune.methods import Method
from aprune.tasks import Task
from aprune.trained import Trained
from aprune.training import Recipe, describe_settings

T = TypeVar("T")
Start = Literal["fresh", "rewound", "fine_tuned"]
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
        weights: Whether to keep the searched networks too, which makes no other search of it.
    """

    parent: str
    method: Method
    task: Task
    recipe: Recipe
    sparsities: tuple[float, ...]
    seed: int
    weights: bool = field(default=False, compare=False)

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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NetworkWarning)  # the result tells it
                found = search(
                    self.parent,
                    self.task,
                    self.method,
                    sparsities=self.sparsities,
                    seed=self.seed,
                    recipe=self.recipe,
                    weights=self.weights,
                    device=device,
                    progress=False,
                    checkpoint=store.checkpoint(self.describe()),
                )
        except SearchError as error:
            result["failed"] = str(error)
        else:
            for sparsity, architecture in zip(self.sparsities, found.architectures, strict=True):
                store.put_architecture(self.describe_architecture(sparsity), architecture)
            for sparsity, network in zip(self.sparsities, found.networks, strict=self.weights):
                store.put_network(self.describe_architecture(sparsity), network)
            result |= {
                "steps": found.steps,
                "loss": found.curves[-1].final() if found.curves else None,
                "curves": [curve.thinned() for curve in found.curves],
                "accuracy": found.accuracy,
                "connections": [architecture.kept for architecture in found.architectures],
                "empty_layers": [len(a.empty_layers()) for a in found.architectures],
                "densities": [
                    {name: round(density, 6) for name, density in a.densities().items()}
                    for a in found.architectures
                ],
            }
        return keep(store, self, result, device)

    def architecture(
        self, sparsity: float, store: Store, device: torch.device
    ) -> Architecture | None:
        """Return an architecture, searching for it if it is not there; None if the search dies."""
        wanted = self.describe_architecture(sparsity)
        return self._get(lambda: store.get_architecture(wanted), store, device)

    def network(self, sparsity: float, store: Store, device: torch.device) -> Trained | None:
        """Return the network with the weights of the search, as `architecture` does."""
        assert self.weights
        wanted = self.describe_architecture(sparsity)
        return self._get(lambda: store.get_network(wanted, self.parent), store, device)

    def _get(self, look: Callable[[], T | None], store: Store, device: torch.device) -> T | None:
        """Return what the search left behind, after doing it if need be."""
        kept = look()
        if kept is not None or (self.look(store) or {}).get("failed"):
            return kept

        def do() -> T | None:
            self.do(store, device)
            return look()

        return store.do_once(self.describe(), look, do)

    def describe_architecture(self, sparsity: float) -> dict[str, Any]:
        """Return what determines one of its architectures."""
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
        start: Which weights to start from: `fresh` ones, those that the search began with
            (`rewound`), or those that it ended with (`fine_tuned`).
        before: Where the dense parent got its weights, if it is fine-tuned.
        bare: Whether the connections of a layer have one weight and its negative.
    """

    parent: str
    search: SearchRun | None
    sparsity: float
    task: Task
    recipe: Recipe
    seed: int
    reshuffled: bool = False
    init: Scheme = "auto"
    start: Start = "fresh"
    before: "TransferRun | None" = None
    bare: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether layers may have other shapes than where the architecture was found."""
        if self.search is None:
            return False
        there, here = self.search.task, self.task
        same = (there.shape, there.num_classes) == (here.shape, here.num_classes)
        return self.parent != self.search.parent or not same

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the result, as JSON can hold it."""
        # what was done before there was a choice keeps its name
        choice: dict[str, Any] = {"reshuffled": True} if self.reshuffled else {}
        choice |= {"init": self.init} if self.init != "auto" else {}
        choice |= {"start": self.start} if self.start != "fresh" else {}
        choice |= {"before": self.before.describe()} if self.before is not None else {}
        choice |= {"bare": True} if self.bare else {}
        adapted = self.elsewhere and self.search is not None and self.parent == self.search.parent
        choice |= {"fitted": "exactly"} if adapted else {}
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

    def needs(self, store: Store) -> list[Path]:
        """Return the files of earlier runs that it starts from, as far as they are there."""
        paths = []
        if self.search is not None:
            found = self.search.describe_architecture(self.sparsity)
            paths = [store.run_path(self.search.describe()), store.architecture_path(found)]
            paths += [store.network_path(found)] if self.start == "fine_tuned" else []
        if self.before is not None:
            paths.append(store.network_path(self.before.describe()))
        return [path for path in paths if path.is_file()]


def keep(
    store: Store, run: SearchRun | TransferRun, result: Mapping[str, Any], device: torch.device
) -> dict[str, Any]:
    """Put a result into the store, with where it was made; return all of it."""
    whole = {**result, "device": device.type}
    store.put(run.describe(), whole)
    return whole
