"""`aprune transfer`: retrain an architecture on a new task."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from aprune.cli import option
from aprune.cli.output import (
    alone_at,
    check_replaceable,
    checkpoint_folder,
    complain,
    count,
    output_folder,
    path_safe,
    print_json,
    say,
)
from aprune.errors import SettingError

if TYPE_CHECKING:
    from aprune.architecture import Architecture
    from aprune.retraining import Result
    from aprune.tasks import Task

EXAMPLE = (
    "Example: aprune transfer archs/mlp-digits-ap-0.9-seed0.arch.safetensors --task digits"
    " --classes 5,6,7,8,9 --images 50 --seed 0"
)


def transfer(
    task: Annotated[
        str, typer.Option(metavar="NAME", help="The new task: digits, cifar100, folder:PATH, …")
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The architecture, as find wrote it.")
    ] = None,
    dense: Annotated[
        bool, typer.Option("--dense", help="Retrain the whole parent instead of a FILE.")
    ] = False,
    parent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The parent; else the one that the file names."),
    ] = None,
    classes: option.Classes = None,
    images: option.Images = None,
    size: option.Size = None,
    seed: option.Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Write the model there, replacing one.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Start from these weights instead of fresh ones."),
    ] = None,
    steps: option.Steps = None,
    batch: option.Batch = None,
    lr: option.LearningRate = None,
    optimiser: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="sgd (the default) or adam, which needs an --lr."),
    ] = None,
    init: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="Fresh weights: auto, normal, he, quiet, he_density or he_fan_in."
        ),
    ] = "auto",
    epsilon: Annotated[
        float | None, typer.Option(metavar="X", help="Standard deviation for --init normal.")
    ] = None,
    mismatch: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="Where shapes differ: random at the same density, or dense."
        ),
    ] = "random",
    bare: Annotated[
        bool,
        typer.Option(
            "--bare", help="Learn signs only: weights of −s or +s, with one s for each tensor."
        ),
    ] = False,
    device: option.Device = "auto",
    shrink_batch: option.ShrinkBatch = False,
    fresh: option.Fresh = False,
    json: option.Json = False,
) -> None:
    """Retrain an architecture on a new task.

    It gets fresh weights and is tested on images of the new task that it has never seen. Image
    size, channels and number of classes may differ from those of the search. After an interruption the
    same command goes on.
    """
    from aprune.retraining import transfer
    from aprune.tasks import load_task
    from aprune.trained import load_model
    from aprune.training import Recipe, choose_device
    from aprune.training.checkpoint import remove_checkpoint
    from aprune.training.ranks import joined

    _check_apart(file, out)
    architecture = _load(file, dense=dense, parent=parent)
    name = _name_parent(architecture, file, parent)
    changes = {"steps": steps, "batch": batch, "lr": lr, "optimiser": optimiser}
    _check(changes, init, epsilon, mismatch)
    option.check_shrink(shrink_batch)
    choose_device(device)
    drawn = option.read_classes(classes)
    start = None if start_from is None else load_model(start_from, parent)
    with contextlib.ExitStack() as stack:
        team = stack.enter_context(joined(device))
        if out is not None:
            check_replaceable(out)
            stack.enter_context(output_folder(out.parent, mine=team.first))
        with team.in_turn():
            data = load_task(task, classes=drawn, images=images, size=size, seed=seed)
        checkpoint = _checkpoint(
            out,
            f"{name}-{data.name}-seed{seed}",
            [
                architecture.digest if architecture is not None else None,
                [dict(data.provenance), changes, init, epsilon, mismatch, bare],
                str(start_from),
            ],
        )

        def do(**changes: Any) -> "Result":
            return transfer(
                architecture,
                name,
                data,
                seed=seed,
                recipe=option.make_recipe(Recipe.for_transfer, name, data, **changes),
                init=init,  # type: ignore[arg-type]
                epsilon=0.01 if epsilon is None else epsilon,
                mismatch=mismatch,  # type: ignore[arg-type]
                start_from=start,
                bare=bare,
                device=device,
                checkpoint=checkpoint,
            )

        with alone_at(checkpoint if team.first else None, fresh=fresh) as done:
            result = option.with_room(do, changes, shrink=shrink_batch)
            if team.first and out is not None:
                result.save(out)
            if team.first and checkpoint is not None:
                remove_checkpoint(checkpoint, done)
        if team.first:
            summary = _describe(result, data, out)
            if json:
                print_json(summary)
            else:
                _print(summary, data)


def _checkpoint(out: Path | None, otherwise: str, about: list[Any]) -> Path | None:
    """Return the place for the state of the training: beside the model, or where caches are.

    Who writes no model may do many trainings at once, so their places are told apart by all that is
    special `about` them.
    """
    if out is not None:
        return checkpoint_folder(out.parent, out.name)
    from aprune.experiments.store import key_of
    from aprune.files import cache_folder

    cache = cache_folder()
    return cache and checkpoint_folder(
        cache, f"{path_safe(otherwise)}-{key_of({'about': about})[:8]}"
    )


def _check_apart(file: Path | None, out: Path | None) -> None:
    if file is not None and out is not None and file.resolve() == out.resolve():
        raise SettingError(
            f"--out {out} is the architecture itself, which the model would replace: choose"
            " another name"
        )


def _load(file: Path | None, *, dense: bool, parent: str | None) -> "Architecture | None":
    if (file is None) != dense:
        raise SettingError(
            "got both a FILE and --dense: choose one of them"
            if dense
            else "there is no architecture to retrain: give a FILE, or --dense with --parent NAME"
        )
    if parent is not None:
        option.check_parent(parent)
    if file is None:
        if parent is None:
            raise SettingError("--dense needs to know which network: give --parent NAME")
        return None
    from aprune.architecture import Architecture

    return Architecture.load(file)


def _name_parent(architecture: "Architecture | None", file: Path | None, parent: str | None) -> str:
    """Take the parent that the file names only if it is aprune's own: a file may not name code."""
    from aprune.parents import parent_names

    if parent is not None:
        return parent
    named = architecture.provenance.get("parent") if architecture is not None else None
    if named is None:
        raise SettingError(
            f"{file} does not say which parent it was found in, as after a training loop of one's own:"
            " give --parent, a name or module:factory"
        )
    if named not in parent_names():
        raise SettingError(
            f"{file} was found in {named!r}, which is not one of aprune's parents:"
            " say with --parent module:factory how to build it"
        )
    return str(named)


def _check(changes: dict[str, Any], init: str, epsilon: float | None, mismatch: str) -> None:
    from aprune.initialise import Scheme

    option.check_recipe(**changes)
    if changes["optimiser"] == "adam" and changes["lr"] is None:
        raise SettingError("adam needs a learning rate of its own: give --lr, such as --lr 0.001")
    option.check_choice(init, "--init", get_args(Scheme))
    option.check_choice(mismatch, "--mismatch", ("random", "dense"))
    if epsilon is not None and init != "normal":
        raise SettingError(f"--epsilon belongs to --init normal, but --init is {init}")
    if epsilon is not None and not epsilon > 0:
        raise SettingError(f"epsilon is {epsilon}: expected a number above 0")


def _describe(result: "Result", data: "Task", out: Path | None) -> dict[str, Any]:
    from aprune.connections import weights_of

    fitted, origin = result.architecture, result.provenance
    every = sum(weight.numel() for weight in weights_of(result.model).values())
    return {
        "accuracy": result.accuracy,
        "sparsity": origin["sparsity"],
        "connections": fitted.kept if fitted is not None else every,
        "of": fitted.total if fitted is not None else every,
        "empty_layers": list(fitted.empty_layers()) if fitted is not None else [],
        "train_loss": origin["train_loss"],
        "steps": len(result.curve.loss),
        "parent": origin["parent"],
        "task": origin["task"],
        "train_images": len(data.train_labels),
        "test_images": len(data.test_labels),
        "classes": list(data.classes),
        "recipe": origin["recipe"],
        "init": origin["init"],
        "bare": origin.get("bare", False),
        "seed": origin["seed"],
        "out": None if out is None else str(out),
    }


def _print(summary: dict[str, Any], data: "Task") -> None:
    kind = ", bare" if summary["bare"] else ""
    say(
        f"{summary['accuracy']:.1%} of {summary['test_images']:,} test images right:"
        f" {summary['parent']} with {summary['connections']:,} of {summary['of']:,} connections"
        f" (sparsity {summary['sparsity']:.4g}{kind}), retrained on"
        f" {summary['train_images']:,} images of {data.num_classes} classes of {data.name} in"
        f" {count(summary['steps'], 'step')} to training loss {summary['train_loss']:.3f}."
    )
    if summary["out"]:
        say(f"The model is in {summary['out']}.")
    if summary["empty_layers"]:
        complain(f"warning: no connection is left in {', '.join(summary['empty_layers'])}")
