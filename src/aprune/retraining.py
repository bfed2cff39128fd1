"""`transfer`: an architecture gets fresh weights and is retrained on a new task."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import aprune
from aprune.architecture import Architecture
from aprune.connections import find_connections, shapes_of, weights_of
from aprune.errors import SettingError, check_kind
from aprune.initialise import Scheme, initialise
from aprune.maths.seed import derive_seed
from aprune.tasks import Task
from aprune.trained import Trained, name_of
from aprune.training import (
    Curve,
    EngineName,
    Recipe,
    choose_device,
    describe_settings,
    evaluate,
    fit_masked,
)
from aprune.training.bare import bare_names
from aprune.training.checkpoint import checkpointed
from aprune.training.device import watched
from aprune.training.network import Parent, describe_training, network_for
from aprune.training.state import digest


@dataclass(frozen=True, eq=False)
class Result:
    """What a retraining gave.

    Attributes:
        model: An ordinary network in evaluation mode; weights outside the architecture are exactly
            zero. If it is bare, the others of a tensor are −s or +s.
        accuracy: On the new task's test images, which were used for nothing else.
        curve: Training loss of every step.
        architecture: As it was retrained, adapted to the new task's shapes; None if dense.
        provenance: All that determined the result.
    """

    model: nn.Module
    accuracy: float
    curve: Curve
    architecture: Architecture | None
    provenance: Mapping[str, Any]
    trained: Trained = field(repr=False)

    def predict(self, images: Tensor) -> Tensor:
        """Return the class number of each uint8 image [N, C, H, W]."""
        return self.trained.predict(images)

    def save(self, path: Path | str) -> None:
        """Write the model, ready to be loaded again with `load_model` for predictions."""
        self.trained.save(path)


@dataclass(frozen=True, eq=False)
class Retraining:
    """One retraining to be done; the fields are the arguments of `transfer`."""

    architecture: Architecture | None
    parent: Parent
    task: Task
    seed: int = 0
    recipe: Recipe | None = None
    init: Scheme = "auto"
    epsilon: float = 0.01
    mismatch: Literal["random", "dense"] = "random"
    start_from: Trained | None = None
    bare: bool = False
    checkpoint: Path | str | None = None

    def __post_init__(self) -> None:
        kinds = (
            (self.architecture, Architecture, "architecture", "Architecture.load(path) reads one"),
            (self.recipe, Recipe, "recipe", "such as Recipe(steps=…, lr=…)"),
            (self.start_from, Trained, "start_from", "load_model(path) reads one"),
        )
        check_kind(self.task, Task, "task", "load_task(…) returns one")
        for given, kind, name, hint in kinds:
            check_kind(given, kind, name, hint, optional=True)


def transfer(
    architecture: Architecture | None,
    parent: Parent,
    task: Task,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    init: Scheme = "auto",
    epsilon: float = 0.01,
    mismatch: Literal["random", "dense"] = "random",
    start_from: Trained | None = None,
    bare: bool = False,
    device: str | torch.device = "auto",
    engine: EngineName = "auto",
    progress: bool | None = None,
    checkpoint: Path | str | None = None,
) -> Result:
    """Retrain `architecture` on `task` from fresh weights and evaluate it.

    Args:
        architecture: What `find` returned; None retrains the dense parent.
        parent: The parent it was found in: a name, a network, or a function that builds one for a
            task. Input channels, image size and classes may differ from the search's.
        task: The new task. Its test images are evaluated on once, at the end.
        seed: Of the fresh weights and of the order of images.
        recipe: How to train; None takes `Recipe.for_transfer`.
        init: How fresh weights are drawn (see `initialise`).
        epsilon: Standard deviation for `init="normal"`.
        mismatch: What a layer gets whose shape differs from the search's: `random` connections at the
            density that the layer had, or all of them (`dense`).
        start_from: A network whose weights to start from in place of fresh ones, as
            `search(..., weights=True)` keeps them. The last layer is drawn fresh where the classes
            are others, and so is any tensor whose shape does not fit.
        bare: Whether all connections of a tensor share one magnitude, so that only their signs are
            learnt: each is −s or +s, and takes two bits at most in a file. Biases, norms and tensors
            that the architecture leaves out stay real. A connection that is zero in `start_from`
            starts with a fresh sign.
        device: `auto`, `cpu` or `cuda`.
        engine: How training steps are run: `eager`, `captured`, `fused` or `compiled`, each faster
            than the one before; `auto` takes the fastest that pays (see docs/performance.md). Bare
            ones are captured at most.
        progress: Whether to show a bar; None shows it on a terminal.
        checkpoint: A folder for the state of the training, written now and then. If one is there, the
            training goes on from it, bit for bit. Remove it when the result is saved; None keeps
            nothing.

    Returns:
        The retrained network, its accuracy on the test images of the new task, its training loss, and
        the architecture with the shapes of that task.

    Example:
        >>> from aprune import Random, Recipe, find, load_task
        >>> old, new = load_task("digits", classes=[0, 1, 2]), load_task("digits", classes=[3, 4])
        >>> found = find("mlp", old, Random(), sparsity=0.9)
        >>> result = transfer(found, "mlp", new, recipe=Recipe(steps=20, lr=0.05), device="cpu")
        >>> 0.0 <= result.accuracy <= 1.0
        True
    """
    where = choose_device(device)
    retraining = Retraining(
        architecture,
        parent,
        task,
        seed=seed,
        recipe=recipe,
        init=init,
        epsilon=epsilon,
        mismatch=mismatch,
        start_from=start_from,
        bare=bare,
        checkpoint=checkpoint,
    )
    model = network_for(parent, task, where, seed=seed, weights=False)
    ready = prepare(retraining, model)
    placed = task.to(where)
    with (
        checkpointed(checkpoint, lambda: describe_run(retraining, ready, model, engine)),
        watched(ready.recipe.batch),
    ):
        curve = fit_masked(
            model,
            ready.masks,
            placed,
            ready.recipe,
            seed=seed,
            bare=bare,
            engine=engine,
            title="retraining",
            progress=progress,
        )
        return judge(retraining, ready, model, placed, curve, progress=progress)


@dataclass(frozen=True)
class Ready:
    """What is known once the network is there."""

    recipe: Recipe
    masks: dict[str, Tensor]
    fitted: Architecture | None


def prepare(retraining: Retraining, model: nn.Module) -> Ready:
    """Put the weights to start from into `model`."""
    r = retraining
    r.task.check_variety()
    fitted, masks = _fit_masks(r.architecture, model, r.mismatch, r.seed)
    # not the numbers that a search with the same seed started from: a mask remembers those
    initialise(model, masks, r.init, seed=derive_seed(r.seed, "transfer"), epsilon=r.epsilon)
    if r.start_from is not None:
        signed = bare_names(model, masks) if r.bare else []
        _load_what_fits(model, r.start_from, r.task, signed)
    return Ready(r.recipe or Recipe.for_transfer(model, r.task), masks, fitted)


def describe_run(
    retraining: Retraining, ready: Ready, model: nn.Module, engine: EngineName
) -> dict[str, Any]:
    """Return what determines a retraining, as JSON can hold it; `model` has not been trained yet.

    Fresh weights follow from their scheme and the seed: to read all of them, for a retraining of a
    second or two, would take a fifth of its time.
    """
    r = retraining
    return {
        "aprune": aprune.__version__,
        "weights": [r.init, r.epsilon, digest(r.start_from.model.state_dict())]
        if r.start_from is not None
        else [r.init, r.epsilon],
        "architecture": ready.fitted.digest if ready.fitted is not None else None,
        "bare": r.bare,
        "seed": r.seed,
        "engine": engine,
        **describe_training(r.parent, model, r.task, ready.recipe),
    }


def judge(
    retraining: Retraining,
    ready: Ready,
    model: nn.Module,
    placed: Task,
    curve: Curve,
    *,
    progress: bool | None = None,
) -> Result:
    """Evaluate the trained network, and say where it comes from."""
    r = retraining
    accuracy = evaluate(model, placed, progress=progress)
    provenance = {
        "parent": name_of(model),
        "architecture": dict(r.architecture.provenance) if r.architecture is not None else None,
        "sparsity": ready.fitted.sparsity if ready.fitted is not None else 0.0,
        "task": dict(r.task.provenance),
        "recipe": describe_settings(ready.recipe),
        "init": r.init if r.start_from is None else "start_from",
        "mismatch": r.mismatch,
        "seed": r.seed,
        "accuracy": accuracy,
        "train_loss": curve.final(),
        **({"bare": True} if r.bare else {}),
    }
    trained = Trained.of(model.eval(), r.task, provenance)
    return Result(model, accuracy, curve, ready.fitted, provenance, trained)


def _fit_masks(
    architecture: Architecture | None,
    model: nn.Module,
    mismatch: Literal["random", "dense"],
    seed: int,
) -> tuple[Architecture | None, dict[str, Tensor]]:
    """Carry the architecture over to this network; None is dense."""
    if architecture is None:
        return None, {}
    patterns = {key: _patterns(architecture.provenance.get(key)) for key in ("include", "exclude")}
    connections = find_connections(model, **patterns)
    fitted = architecture.adapt(shapes_of(connections), mismatch=mismatch, seed=seed)
    return fitted, fitted.masks(next(model.parameters()).device)


def _patterns(value: Any) -> list[str] | None:
    return [str(pattern) for pattern in value] if isinstance(value, list | tuple) else None


def _load_what_fits(model: nn.Module, start: Trained, task: Task, signed: Collection[str]) -> None:
    """Take over the weights of `start`; tensors that are `signed` keep fresh ones where it has none."""
    fresh, weights = model.state_dict(), start.model.state_dict()
    if set(fresh) != set(weights):
        odd = sorted(set(fresh) ^ set(weights))[0]
        raise SettingError(
            f"the weights to start from belong to another network: {odd!r} is in only one of them"
        )
    last = list(weights_of(model))[-1]
    layer = last.rpartition(".")[0]
    head = {name for name in fresh if name == last or (layer and name.startswith(f"{layer}."))}
    if start.classes == task.classes:
        head = set()
    carried = {
        name: value
        for name, value in weights.items()
        if value.shape == fresh[name].shape and name not in head
    }
    for name in carried.keys() & signed:
        value = carried[name].to(fresh[name].device)
        carried[name] = torch.where(value == 0, fresh[name], value)
    model.load_state_dict({**fresh, **carried})
