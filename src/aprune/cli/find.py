"""`aprune find`: search architectures, one file for each sparsity."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aprune.cli import option
from aprune.cli.methods import make_method
from aprune.cli.output import (
    alone_at,
    check_replaceable,
    checkpoint_folder,
    complain,
    count,
    output_folder,
    path_safe,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from aprune.architecture import Architecture
    from aprune.finding import Found
    from aprune.methods import Method

EXAMPLE = (
    "Example: aprune find --parent mlp --task digits --classes 0,1,2,3,4 --method ap"
    " --sparsity 0.5,0.9 --seed 0 --out archs/"
)
ARCHITECTURE, MODEL = ".arch.safetensors", ".model.safetensors"
_LONG = 64  # letters for sparsities in the name of a folder

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
        str, typer.Option(metavar="NAME", help="How to choose: see aprune methods.")
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
    settings: option.Settings = None,
    device: option.Device = "auto",
    shrink_batch: option.ShrinkBatch = False,
    fresh: option.Fresh = False,
    json: option.Json = False,
) -> None:
    """Find architectures inside a parent network.

    Writes PARENT-TASK-METHOD-SPARSITY-seedK.arch.safetensors for each sparsity: which connections
    are there, one bit each, and where it comes from. After an interruption the same command goes on.
    """
    from aprune.errors import EmptyLayerWarning
    from aprune.finding import search
    from aprune.tasks import load_task
    from aprune.training import Recipe, choose_device
    from aprune.training.checkpoint import remove_checkpoint
    from aprune.training.ranks import joined

    chosen = make_method(method, settings or [])
    sparsities = option.read_sparsities(sparsity)
    changes = {"steps": steps, "batch": batch, "lr": lr}
    option.check_recipe(**changes)
    option.check_parent(parent)
    option.check_shrink(shrink_batch)
    choose_device(device)
    drawn = option.read_classes(classes)
    with joined(device) as team, output_folder(out, mine=team.first), warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyLayerWarning)  # told with the result, of all methods
        with team.in_turn():
            data = load_task(task, classes=drawn, images=images, size=size, seed=seed)
        if team.first:
            _tell_idle(chosen, changes)
        start = f"{path_safe(parent)}-{path_safe(data.name)}-{method}"
        stems = [out / f"{start}-{s}-seed{seed}" for s in sparsities]
        check_replaceable(*(_add(stem, end) for stem in stems for end in (ARCHITECTURE, MODEL)))
        wanted = ",".join(map(str, sparsities))[:_LONG]
        checkpoint = checkpoint_folder(out, f"{start}-{wanted}-seed{seed}")

        def do(**changes: Any) -> "Found":
            return search(
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
                checkpoint=checkpoint,
            )

        with alone_at(checkpoint if team.first else None, fresh=fresh) as done:
            found = option.with_room(do, changes, shrink=shrink_batch)
            if team.first:
                _save(found, stems)
                remove_checkpoint(checkpoint, done)
        if team.first:
            _print(found, stems, as_json=json)


def _tell_idle(method: "Method", changes: Mapping[str, Any]) -> None:
    """Say which options of the training the method has no use for."""
    given = [name for name, value in changes.items() if value is not None]
    if own := [name for name in given if getattr(method, name, None) is not None]:
        complain(f"--set {own[0]}={getattr(method, own[0])} takes the place of --{own[0]}")
    if method.trains and getattr(method, "when", "trained") == "trained":  # not at the `start`
        return
    used = () if method.trains or not method.looks else ("batch",)
    if idle := [f"--{name}" for name in given if name not in used]:
        verb = "makes" if len(idle) == 1 else "make"
        complain(f"{method.name} trains nothing: {' and '.join(idle)} {verb} no difference")


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
            f"The search took {count(found.steps, 'step')}; its own net ends at training loss"
            f" {origin['train_loss']:.3f} and has {found.accuracy:.1%} of its test images right."
        )
    elif found.steps and not found.curves:
        say(f"The search took {count(found.steps, 'pass', 'passes')} and trained nothing.")
    elif found.steps:
        say(
            f"The search took {count(found.steps, 'step')}; its last round ends at training loss"
            f" {origin['train_loss']:.3f}."
        )
    for arch, stem in pairs:
        if arch.empty_layers():
            complain(
                f"warning: no connection is left in {', '.join(arch.empty_layers())} of {stem.name}, so"
                " nothing passes through; try a lower sparsity, or --exclude it"
            )


def _describe(arch: "Architecture", stem: Path, *, weights: bool) -> dict[str, Any]:
    return {
        "sparsity": arch.provenance["sparsity"],
        "connections": arch.kept,
        "of": arch.total,
        "empty_layers": list(arch.empty_layers()),
        "file": str(_add(stem, ARCHITECTURE)),
        "weights": str(_add(stem, MODEL)) if weights else None,
    }
