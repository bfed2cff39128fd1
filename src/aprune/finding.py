"""`find`: an architecture inside a parent network, searched on a large task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

import aprune
from aprune.architecture import Architecture
from aprune.connections import check_patterns, find_connections, list_patterns
from aprune.errors import SearchError, SettingError, TrainingError, check_kind
from aprune.maths.select import check_sparsity, keep_count
from aprune.methods import AP, Method, Problem
from aprune.parents import parent_for
from aprune.tasks import Task
from aprune.trained import Trained, name_of
from aprune.training import Curve, EngineName, Recipe, choose_device, describe_settings, evaluate
from aprune.training.checkpoint import checkpointed
from aprune.training.device import watched
from aprune.training.network import Parent, describe_training, network_for
from aprune.training.ranks import current_team


@dataclass(frozen=True)
class Found:
    """Everything that a search leaves behind.

    Attributes:
        architectures: One for each sparsity asked for, in that order.
        networks: The searched network with its own weights for each of them, if asked for.
        curves: Training loss, one curve a round.
        steps: Training steps that the search took.
        accuracy: Of the searched network itself on the test images of its own task, at the last
            sparsity; None for methods that train nothing or start over at the end.
    """

    architectures: tuple[Architecture, ...]
    networks: tuple[Trained, ...]
    curves: tuple[Curve, ...]
    steps: int
    accuracy: float | None


@overload
def find(
    parent: Parent,
    task: Task,
    method: Method = ...,
    *,
    sparsity: float,
    seed: int = ...,
    recipe: Recipe | None = ...,
    include: str | Sequence[str] | None = ...,
    exclude: str | Sequence[str] | None = ...,
    device: str | torch.device = ...,
    engine: EngineName = ...,
    progress: bool | None = ...,
    checkpoint: Path | str | None = ...,
) -> Architecture: ...


@overload
def find(
    parent: Parent,
    task: Task,
    method: Method = ...,
    *,
    sparsity: Sequence[float],
    seed: int = ...,
    recipe: Recipe | None = ...,
    include: str | Sequence[str] | None = ...,
    exclude: str | Sequence[str] | None = ...,
    device: str | torch.device = ...,
    engine: EngineName = ...,
    progress: bool | None = ...,
    checkpoint: Path | str | None = ...,
) -> list[Architecture]: ...


def find(
    parent: Parent,
    task: Task,
    method: Method = AP(),  # noqa: B008 - frozen
    *,
    sparsity: float | Sequence[float],
    seed: int = 0,
    recipe: Recipe | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    device: str | torch.device = "auto",
    engine: EngineName = "auto",
    progress: bool | None = None,
    checkpoint: Path | str | None = None,
) -> Architecture | list[Architecture]:
    """Find an architecture in `parent` for `task`.

    Args:
        parent: A name (see `parent_names`), a network of your own, or a function that builds one for
            a task. It is not changed.
        task: Where to search; only its training images are used to choose.
        method: How connections are chosen: `AP()`, `IMP()`, `Random()`, with their settings.
        sparsity: Fraction of connections to remove, or several of them: one search gives one
            architecture for each.
        seed: Of everything random; the same seed gives the same architecture.
        recipe: How the weights are trained on the way; None takes `Recipe.for_search`.
        include: Patterns of parameters to choose from (see `find_connections`).
        exclude: Patterns of parameters to leave alone.
        device: `auto`, `cpu` or `cuda`.
        engine: How training steps are run: `eager`, `captured`, `fused` or `compiled`, each faster
            than the one before; `auto` takes the fastest that pays (see docs/performance.md).
        progress: Whether to show a bar; None shows it on a terminal.
        checkpoint: A folder for the state of the search, written now and then. If one is there, the
            search goes on from it, bit for bit. Remove it when the architecture is saved; None keeps
            nothing.

    Returns:
        An architecture, or a list of them if `sparsity` is a list.

    Example:
        >>> from aprune import Random, load_task
        >>> find("mlp", load_task("digits"), Random(), sparsity=0.9)
        Architecture(...)
    """
    several = isinstance(sparsity, Iterable) and not isinstance(sparsity, str)
    found = search(
        parent,
        task,
        method,
        sparsities=list(sparsity) if several else [sparsity],  # type: ignore[arg-type, list-item]
        seed=seed,
        recipe=recipe,
        include=include,
        exclude=exclude,
        device=device,
        engine=engine,
        progress=progress,
        checkpoint=checkpoint,
    )
    return list(found.architectures) if several else found.architectures[0]


def search(
    parent: Parent,
    task: Task,
    method: Method,
    *,
    sparsities: Sequence[float],
    seed: int = 0,
    recipe: Recipe | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    weights: bool = False,
    device: str | torch.device = "auto",
    engine: EngineName = "auto",
    progress: bool | None = None,
    checkpoint: Path | str | None = None,
) -> Found:
    """Do what `find` does, and return all that is left behind: weights, curves, cost.

    Args:
        parent: A name (see `parent_names`), a network of your own, or a function that builds one for
            a task. It is not changed.
        task: Where to search; only its training images are used to choose.
        method: How connections are chosen: `AP()`, `IMP()`, `Random()`, with their settings.
        sparsities: Fractions of connections to remove, one or more: one search gives one architecture
            for each, in this order.
        seed: Of everything random; the same seed gives the same architectures.
        recipe: How the weights are trained on the way; None takes `Recipe.for_search`.
        include: Patterns of parameters to choose from (see `find_connections`).
        exclude: Patterns of parameters to leave alone.
        weights: Whether to keep the network with its own weights for each architecture, as `transfer`
            takes it for `start_from`; not of methods that train nothing.
        device: `auto`, `cpu` or `cuda`.
        engine: How training steps are run, as in `find`.
        progress: Whether to show a bar; None shows it on a terminal.
        checkpoint: A folder for the state of the search, written now and then. If one is there, the
            search goes on from it, bit for bit. Remove it when the result is saved; None keeps nothing.

    Returns:
        The architectures, the networks if `weights` are kept, the training loss, the number of steps,
        and how good the searched network itself is on its task.

    Example:
        >>> from aprune import IMP, Recipe, load_task
        >>> quick = Recipe(steps=20, lr=0.05)
        >>> digits = load_task("digits", classes=[0, 1, 2])
        >>> found = search("mlp", digits, IMP(), sparsities=[0.5, 0.9], recipe=quick, weights=True)
        >>> len(found.architectures), len(found.networks), found.steps
        (2, 2, 20)
    """
    if not sparsities:
        raise SettingError("no sparsity was given: expected at least one number below 1")
    _check_kinds(task, method, recipe)
    if weights and not method.trains:
        raise SettingError(f"{method.name} trains nothing, so it has no weights to keep")
    task.check_variety()
    place_at = choose_device(device)
    model = network_for(parent, task, place_at, seed=seed, weights=method.needs_weights)
    connections = find_connections(model, include=include, exclude=exclude)
    check_patterns(model, include, exclude)
    total = sum(tensor.numel() for tensor in connections.values())
    ordered = sorted({check_sparsity(s) for s in sparsities})
    for wanted in ordered:
        keep_count(total, wanted)  # fails now rather than at the end
    recipe = recipe or Recipe.for_search(model, task)
    _check_left_to_find(method, {"sparsity": ordered, "steps": [recipe.steps]})
    problem = Problem(
        model,
        tuple(connections),
        task.to(place_at),
        tuple(ordered),
        recipe=recipe,
        seed=seed,
        weights=weights,
        engine=engine,
        progress=progress,
    )

    def describe() -> dict[str, Any]:
        return {
            "aprune": aprune.__version__,
            "method": {"name": method.name, **describe_settings(method)},
            "sparsities": ordered,
            "include": list_patterns(include),
            "exclude": list_patterns(exclude),
            "weights": weights,
            "seed": seed,
            "engine": engine,
            **describe_training(parent, model, task, recipe),
        }

    try:
        with checkpointed(checkpoint, describe), watched(recipe.batch):
            outcome = method.search(problem)
            accuracy = None
            if outcome.trained:
                accuracy = evaluate(model, problem.task, progress=progress)
    except TrainingError as error:
        raise SearchError(f"the search died: {error}") from error
    for masks in outcome.masks.values():  # passes over images may round otherwise elsewhere
        current_team().hand_out(masks.values())
    origin = {
        "aprune": aprune.__version__,
        "parent": name_of(model),
        "method": method.name,
        "settings": describe_settings(method),
        "recipe": describe_settings(outcome.recipe) if outcome.recipe else None,
        "task": dict(task.provenance),
        "input": list(task.shape),
        "classes": task.num_classes,
        "include": list_patterns(include),
        "exclude": list_patterns(exclude),
        "seed": seed,
        "steps": outcome.steps,
        "train_loss": outcome.curves[-1].final() if outcome.curves else None,
        "test_accuracy": accuracy,
        **outcome.notes,
    }
    architectures = {s: Architecture(outcome.masks[s], {**origin, "sparsity": s}) for s in ordered}
    asked = [float(s) for s in sparsities]
    return Found(
        architectures=tuple(architectures[s] for s in asked),
        networks=tuple(
            _trained(parent, task, outcome.weights[s], architectures[s]) for s in asked if weights
        ),
        curves=tuple(outcome.curves),
        steps=outcome.steps,
        accuracy=accuracy,
    )


def _check_left_to_find(method: Method, wanted: Mapping[str, list[Any]]) -> None:
    """Raise if a method comes with settings that a search sets itself, and other ones."""
    for field in fields(method):
        given = getattr(method, field.name)
        if not field.metadata.get("set_by_find") or given == field.default:
            continue
        asked = wanted[field.name]
        if sorted(set(given if isinstance(given, Sequence) else [given])) != asked:
            shown = asked[0] if len(asked) == 1 else asked
            raise SettingError(
                f"{method.name} comes with {field.name}={given!r}, but find searches with {shown!r}:"
                f" leave {field.name} out, which is for attach, and give find a sparsity and a"
                " recipe, such as Recipe(steps=…, lr=…)"
            )


def _check_kinds(task: object, method: object, recipe: object) -> None:
    """Say what is expected to whoever gives a name, or a class, where a thing is meant."""
    check_kind(task, Task, "task", "load_task(…) returns one")
    if isinstance(method, type) or not callable(getattr(method, "search", None)):
        raise SettingError(
            f"method is {method!r}: expected a method with its settings, such as AP()"
        )
    check_kind(recipe, Recipe, "recipe", "such as Recipe(steps=…, lr=…)", optional=True)


def _trained(
    parent: Parent, task: Task, state: Mapping[str, Tensor], architecture: Architecture
) -> Trained:
    model = parent_for(parent, task)
    model.load_state_dict(state)
    return Trained.of(model.eval(), task, dict(architecture.provenance))
