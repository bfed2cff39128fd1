"""`aprune find`: search architectures, one file for each sparsity."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aprune.cli import option
from aprune.cli.output import (
    check_replaceable,
    complain,
    output_folder,
    path_safe,
    print_json,
    print_table,
    say,
)
from aprune.errors import SettingError

if TYPE_CHECKING:
    from aprune.architecture import Architecture
    from aprune.finding import Found
    from aprune.methods import Method

EXAMPLE = (
    "Example: aprune find --parent mlp --task digits --classes 0,1,2,3,4 --method ap"
    " --sparsity 0.5,0.9 --seed 0 --out archs/"
)
ARCHITECTURE, MODEL = ".arch.safetensors", ".model.safetensors"

Patterns = list[str] | None


def find(
    parent: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where to search: mlp, vgg19_bn, …, or module:factory."),
    ],
    task: Annotated[
        str, typer.Option(metavar="NAME", help="What to search on: digits, cifar10, folder:PATH, …")
    ],
    sparsity: Annotated[
        str, typer.Option(metavar="S,…", help="Fractions of the connections to remove.")
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME", help="How to choose: ap, imp or random.")
    ] = "ap",
    classes: option.Classes = None,
    images: option.Images = None,
    size: option.Size = None,
    seed: option.Seed = 0,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For the files; those of the same name give way.")
    ] = Path("archs"),
    weights: Annotated[
        bool, typer.Option("--weights", help="Keep the search's own weights too, as models.")
    ] = False,
    steps: option.Steps = None,
    batch: option.Batch = None,
    lr: option.LearningRate = None,
    include: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="Choose among these parameters only.")
    ] = None,
    exclude: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="Leave these parameters alone.")
    ] = None,
    t_l: Annotated[
        float | None,
        typer.Option("--t-l", metavar="X", help="ap: inverse temperature of the forward pass."),
    ] = None,
    t_s: Annotated[
        float | None,
        typer.Option("--t-s", metavar="X", help="ap: inverse temperature of the backward pass."),
    ] = None,
    gamma: Annotated[
        str | None,
        typer.Option(metavar="X", help="ap: the penalty, a number or auto (the default)."),
    ] = None,
    w_step: Annotated[float | None, typer.Option(metavar="X", help="ap: step size of w.")] = None,
    dense_start: Annotated[
        float | None,
        typer.Option(metavar="X", help="ap: fraction of the steps before anything goes."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", help="imp: how often to train and prune; they share --steps."),
    ] = None,
    rewind: Annotated[
        int | None, typer.Option(metavar="N", help="imp: the step that every round goes back to.")
    ] = None,
    spread: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="random: layer, the same density in each; or global."),
    ] = None,
    device: option.Device = "auto",
    json: option.Json = False,
) -> None:
    """Find architectures inside a parent network.

    Writes PARENT-TASK-METHOD-SPARSITY-seedK.arch.safetensors for each sparsity: which connections
    are there, one bit each, and where it comes from.
    """
    from aprune.finding import search
    from aprune.tasks import load_task
    from aprune.training import Recipe, choose_device

    chosen = make_method(
        method,
        t_l=t_l,
        t_s=t_s,
        gamma=_read_gamma(gamma),
        w_step=w_step,
        dense_start=dense_start,
        rounds=rounds,
        rewind=rewind,
        spread=spread,
    )
    sparsities = option.read_sparsities(sparsity)
    changes = {"steps": steps, "batch": batch, "lr": lr}
    option.check_recipe(**changes)
    option.check_parent(parent)
    choose_device(device)
    drawn = option.read_classes(classes)
    with output_folder(out):
        data = load_task(task, classes=drawn, images=images, size=size, seed=seed)
        start = f"{path_safe(parent)}-{path_safe(data.name)}-{method}"
        stems = [out / f"{start}-{s}-seed{seed}" for s in sparsities]
        check_replaceable(*(_add(stem, end) for stem in stems for end in (ARCHITECTURE, MODEL)))
        found = search(
            parent,
            data,
            chosen,
            sparsities=sparsities,
            seed=seed,
            recipe=option.make_recipe(Recipe.for_search, parent, data, **changes),
            include=include or None,
            exclude=exclude or None,
            weights=weights,
            device=device,
        )
        _save(found, stems)
    _print(found, stems, as_json=json)


def make_method(name: str, **settings: Any) -> "Method":
    """Return a method with the settings that are not None, each of which must be its own.

    Example:
        >>> make_method("imp", rounds=3, t_l=None)
        IMP(rounds=3, rewind=0, steps=None)
    """
    from aprune.methods import METHODS, find_method

    method = find_method(name)
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        owners = [other for other, kind in METHODS.items() if key in {f.name for f in fields(kind)}]
        if name not in owners:
            raise SettingError(
                f"--{key.replace('_', '-')} is a setting of method {' and '.join(owners)}, but the"
                f" method is {name}: leave it out"
            )
    return replace(method, **given)  # type: ignore[type-var]


def _read_gamma(text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"got {text!r} for --gamma: expected auto or a number") from None


def _add(stem: Path, ending: str) -> Path:
    # Not with_suffix, which would take the digits of a sparsity for an ending.
    return stem.with_name(stem.name + ending)


def _save(found: "Found", stems: Sequence[Path]) -> None:
    for architecture, stem in zip(found.architectures, stems, strict=True):
        architecture.save(_add(stem, ARCHITECTURE))
    for network, stem in zip(found.networks, stems, strict=False):
        network.save(_add(stem, MODEL))


def _print(found: "Found", stems: Sequence[Path], *, as_json: bool) -> None:
    pairs = list(zip(found.architectures, stems, strict=True))
    origin = found.architectures[0].provenance
    if as_json:
        rows = [_describe(arch, stem, weights=bool(found.networks)) for arch, stem in pairs]
        about = ("parent", "method", "task", "seed", "steps", "train_loss", "test_accuracy")
        print_json({**{key: origin[key] for key in about}, "architectures": rows})
        return
    print_table(
        ("sparsity", "connections", "file"),
        [
            (f"{arch.provenance['sparsity']}", f"{arch.kept:,}", str(_add(stem, ARCHITECTURE)))
            for arch, stem in pairs
        ],
        left=("file",),
    )
    if found.networks:
        say(f"The search's own weights are beside them, as {MODEL} files.")
    if found.accuracy is not None:
        say(
            f"The search took {found.steps:,} steps; its own net ends at training loss"
            f" {origin['train_loss']:.3f} and has {found.accuracy:.1%} of its test images right."
        )
    elif found.steps:
        loss = origin["train_loss"]
        say(
            f"The search took {found.steps:,} steps; its last round ends at training loss {loss:.3f}."
        )
    for arch, stem in pairs:
        if arch.empty_layers():
            complain(f"warning: {stem.name} has no connection in {', '.join(arch.empty_layers())}")


def _describe(arch: "Architecture", stem: Path, *, weights: bool) -> dict[str, Any]:
    return {
        "sparsity": arch.provenance["sparsity"],
        "connections": arch.kept,
        "of": arch.total,
        "empty_layers": list(arch.empty_layers()),
        "file": str(_add(stem, ARCHITECTURE)),
        "weights": str(_add(stem, MODEL)) if weights else None,
    }
