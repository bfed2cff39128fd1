"""`aprune reproduce`: the figures of the paper."""

from pathlib import Path
from typing import Annotated

import typer

from aprune.cli import option
from aprune.cli.output import output_folder, print_json, say

EXAMPLE = "Example: aprune reproduce figure1 --data digits --seeds 5 --out figures/"


def make_app() -> typer.Typer:
    """Put the figures together."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(epilog=EXAMPLE)(_start)
    app.command("figure1", epilog=EXAMPLE)(reproduce_figure1)
    return app


def _start() -> None:
    """Compute a figure of the paper anew."""


def reproduce_figure1(
    data: Annotated[
        str, typer.Option(metavar="NAME", help="digits or mnist; the classes are 0 and 1.")
    ] = "digits",
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs for each temperature.")] = 5,
    iterations: Annotated[int, typer.Option(metavar="N", help="Steps of each run.")] = 5000,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For PNG, PDF and parquet, replacing older ones.")
    ] = Path("aprune-figures"),
    json: option.Json = False,
) -> None:
    """Figure 1: the objective against iterations, for t_s = t_l, t_l/100 and t_l/1000."""
    from aprune.experiments.figure1 import figure1

    with output_folder(out):
        result = figure1(data, seeds=seeds, iterations=iterations, out=out)
    paths = {kind: str(getattr(result, kind)) for kind in ("png", "pdf", "parquet")}
    if json:
        print_json({"data": data, "seeds": seeds, "verdict": result.verdict, **paths})
        return
    say(result.verdict)
    for kind, path in paths.items():
        say(f"{kind}: {path}")
