"""`aprune compare`: methods side by side on one pair of tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aprune.cli import option
from aprune.cli.methods import make_methods
from aprune.cli.output import complain_of, output_folder, print_json, print_table, say
from aprune.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from aprune.experiments.comparison import Comparison
    from aprune.experiments.launch import Launcher

EXAMPLE = (
    "Example: aprune compare --parent mlp --from digits --from-classes 0,1,2,3,4 --to digits"
    " --classes 5,6,7,8,9 --images 50 --methods ap,random,imp,dense --sparsity 0.9,0.98 --seeds 3"
    " --out comparison/"
)


def compare(
    context: typer.Context,
    parent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where to search: mlp, vgg19_bn, …, module:factory."),
    ] = None,
    search_task: Annotated[
        str | None,
        typer.Option("--from", metavar="TASK", help="What to search on: digits, cifar10, …"),
    ] = None,
    new_task: Annotated[
        str | None,
        typer.Option("--to", metavar="TASK", help="What to retrain on and to be judged on."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="In place of all these, and of all but --scale and --seeds: methods, parents, tasks,"
            " starts or bare. Give all presets one --out: they share runs.",
        ),
    ] = None,
    scale: option.Scale = "paper",
    from_classes: Annotated[
        str | None, typer.Option(metavar="N|A,B,…", help="Classes of the search; else all.")
    ] = None,
    classes: option.Classes = None,
    images: option.Images = None,
    size: option.Size = None,
    methods: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="See aprune methods; and dense for the whole parent."),
    ] = "ap,random,imp,dense",
    sparsity: Annotated[
        str, typer.Option(metavar="S,…", help="Fractions of the connections to remove.")
    ] = "0.95,0.99",
    also: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD.VARIANT,…",
            help="Beside the plain ones: reshuffled, bare, normal, he, he_density, he_fan_in,"
            " rewound or fine_tuned, as in ap.bare,dense.fine_tuned.",
        ),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Retrain this parent instead, with the densities of the layers alone.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Repetitions.")] = 3,
    lrs: Annotated[
        str | None,
        typer.Option(
            metavar="X,…", help="Rates to choose from on other training images; else three."
        ),
    ] = None,
    mixups: Annotated[
        str | None,
        typer.Option(
            metavar="X,…", help="Shares of mixed images, chosen alike; else one that suits."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps of a retraining; else chosen to suit.")
    ] = None,
    search_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps of a search; else chosen to suit.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A setting of one of the methods."),
    ] = None,
    out: option.Runs = Path("aprune-comparison"),
    time_limit: option.TimeLimit = None,
    device: option.Device = "auto",
    on: option.On = "here",
    fresh: option.Fresh = False,
    json: option.Json = False,
) -> None:
    """Compare methods on a pair of tasks.

    Every method gets the same images, seeds, number of connections and learning rates to choose
    from. Every run is kept as soon as it is done: after an interruption the same command goes on.
    """
    from aprune.experiments.comparison import Comparison, TaskChoice, compare
    from aprune.experiments.questions import ask

    place = option.launcher(on, device)
    if preset is not None:
        _check_alone(context)
        with place as launcher:
            _answer(
                ask(preset, seeds, scale),  # type: ignore[arg-type]
                out,
                preset,
                launcher,
                time_limit=time_limit,
                fresh=fresh,
                json=json,
            )
        return
    if scale != "paper":
        raise SettingError("--scale is for a --preset: what is compared otherwise has its own size")
    if parent is None or search_task is None or new_task is None:
        raise SettingError("nothing to compare: give --parent, --from and --to, or a --preset")
    compared = option.read_list(methods, "--methods")
    comparison = Comparison(
        parent=parent,
        search_task=TaskChoice(search_task, _fixed(from_classes, "--from-classes"), size=size),
        new_task=TaskChoice(new_task, _fixed(classes, "--classes"), images, size),
        methods=tuple(compared),
        settings=make_methods(compared, settings or []),
        sparsities=tuple(option.read_sparsities(sparsity)),
        also=_read_variants(also),
        onto=onto,
        seeds=tuple(range(seeds)),
        lrs=tuple(option.read_numbers(lrs, "--lrs")) if lrs is not None else (),
        mixups=tuple(option.read_numbers(mixups, "--mixups")) if mixups is not None else (),
        retrain_steps=steps,
        search_steps=search_steps,
    )
    option.check_recipe(steps=steps)
    option.check_recipe(steps=search_steps)
    option.check_parent(parent)
    if onto is not None:
        option.check_parent(onto)
    with output_folder(out), place as launcher:
        frame = compare(comparison, out, launcher=launcher, time_limit=time_limit, fresh=fresh)
    if json:
        print_json(_document(frame, out))
    else:
        _print(frame, out)
    complain_of(frame.attrs)


# what may stand beside a preset
_WHAT = ("preset", "scale", "seeds")
_HOW = ("out", "time_limit", "device", "on", "fresh", "json")


def _check_alone(context: typer.Context) -> None:
    """Raise if an option is given that a preset would pass over in silence."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in (*_WHAT, *_HOW) and source is not None and source.name == "COMMANDLINE":
            raise SettingError(
                f"a --preset says itself what is compared: leave out {parameter.opts[0]}"
            )


def _answer(
    comparisons: "Mapping[str, Comparison]",
    out: Path,
    preset: str,
    launcher: "Launcher",
    *,
    time_limit: float | None,
    fresh: bool,
    json: bool,
) -> None:
    """Do the comparisons of a preset one after another: a folder each, and one store for all runs."""
    from aprune.experiments.comparison import compare
    from aprune.experiments.store import Store
    from aprune.progress import Clock

    store, clock, documents = Store(out, fresh=fresh), Clock(time_limit), {}
    for name, comparison in comparisons.items():
        folder = out / preset / name
        with output_folder(folder):
            frame = compare(
                comparison, folder, store=store, launcher=launcher, time_limit=clock.left
            )
        documents[name] = _document(frame, folder)
        if not json:
            say(name)
            _print(frame, folder)
        complain_of(frame.attrs)
    if json:
        print_json(documents)


def _read_variants(text: str | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in option.read_list(text, "--also") if text is not None else []:
        method, dot, variant = word.partition(".")
        if not dot:
            raise SettingError(f"got {word!r} for --also: expected METHOD.VARIANT, as in ap.bare")
        pairs.append((method, variant))
    return tuple(pairs)


def _fixed(text: str | None, option_name: str) -> int | tuple[str, ...] | None:
    classes = option.read_classes(text, option_name)
    return tuple(classes) if isinstance(classes, list) else classes


def _document(frame: "pd.DataFrame", out: Path) -> dict[str, Any]:
    import json

    # pandas writes nan as null, which JSON has no other word for
    rows = json.loads(frame.to_json(orient="records", double_precision=15))
    return {"out": str(out), "complete": frame.attrs["complete"], "rows": rows}


def _print(frame: "pd.DataFrame", out: Path) -> None:
    if len(frame) == 0:
        say("No retraining is finished yet.")
        return
    from aprune.experiments.report import tabulate

    table = tabulate(frame)
    print_table(table.header, table.rows, left=("method",))
    tables = [
        name for name in ("rows.parquet", "tuning.parquet", "table.md") if (out / name).is_file()
    ]
    figures = sorted(path.name for path in out.glob("[!.]*.png"))
    say(f"In {out}: {', '.join([*tables, *figures])}")
