"""`aprune reproduce`: the figures and the table of the paper."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aprune.cli import option
from aprune.cli.output import complain_of, output_folder, print_json, print_table, say
from aprune.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd

EXAMPLE = "Example: aprune reproduce figure1 --data digits --seeds 5 --out figures/"
THEOREM = "Example: aprune reproduce theorem --steps 10000 --out figures/"
SMALL = "Example: aprune reproduce {name} --scale small --parent mlp --budget quick --out paper/"
WARMTH = "Example: aprune reproduce temperatures --data digits,made --out temperatures/"
REDRAW = "Example: aprune reproduce figures --from paper/ --out figures/"

TITLES = {
    "figure2": "Figure 2: the search's own domain, with 5,000 images that it has not seen.",
    "figure3": "Figure 3: ten new classes with 5,000 images.",
    "figure4": "Figure 4: ten new classes with 1,000 images.",
    "figure5": "Figure 5: ten new classes with 500 images.",
    "figure6": "Figure 6: ten new classes with 100 images.",
    "figure7": "Figure 7: ten new classes with 50 images.",
    "table1": "Table 1: figure 5 with the connections of each layer in random places.",
    "all": "All figures and table 1, and what becomes of the paper's claims.",
}


def make_app() -> typer.Typer:
    """Put the figures together."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(epilog=EXAMPLE)(_start)
    app.command("figure1", epilog=EXAMPLE)(reproduce_figure1)
    app.command("temperatures", epilog=WARMTH)(reproduce_temperatures)
    app.command("theorem", epilog=THEOREM)(reproduce_theorem)
    for name, title in TITLES.items():
        app.command(name, epilog=SMALL.format(name=name), help=title)(_make_command(name))
    app.command("figures", epilog=REDRAW)(redraw_figures)
    return app


def _start() -> None:
    """Compute a figure of the paper anew, or put its theorem to the test."""


def _make_command(name: str) -> Callable[..., None]:
    def command(
        parent: Annotated[
            str, typer.Option(metavar="NAME", help="The paper's is vgg19; with norms, vgg19_bn.")
        ] = "vgg19",
        protocol: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                callback=option.one_of("--protocol", "fair", "paper"),
                help="fair, or paper: weights and rates as it prints them.",
            ),
        ] = "fair",
        scale: option.Scale = "paper",
        budget: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                callback=option.one_of("--budget", "paper", "quick"),
                help="paper, or quick for a first look.",
            ),
        ] = "paper",
        seeds: Annotated[
            int | None, typer.Option(metavar="N", help="Repetitions; else those of the budget.")
        ] = None,
        sparsity: Annotated[
            str | None, typer.Option(metavar="S,…", help="Else those of the budget.")
        ] = None,
        images: option.Images = None,
        out: option.Runs = Path("aprune-paper"),
        time_limit: option.TimeLimit = None,
        device: option.Device = "auto",
        on: option.On = "here",
        fresh: option.Fresh = False,
        json: option.Json = False,
    ) -> None:
        from aprune.experiments import paper

        settings = {
            "protocol": protocol,
            "scale": scale,
            "budget": budget,
            "seeds": seeds,
            "sparsities": None if sparsity is None else option.read_sparsities(sparsity),
            "images": images,
        }
        figures = {"all": paper.FIGURES, "table1": (paper.TABLE1,)}.get(name, (name,))
        if images is not None and len(figures) > 1:
            raise SettingError("--images is for one figure: each has a number of its own")
        option.check_parent(parent)
        place = option.launcher(on, device)
        comparisons = [paper.plan(figure, parent, **settings) for figure in figures]  # type: ignore[arg-type]
        with output_folder(out):
            with place as launcher:
                done = paper.reproduce(
                    comparisons, out, launcher=launcher, time_limit=time_limit, fresh=fresh
                )
            # at last: it is done in one go, and so would be the first to be lost again and again
            if name == "all" and done.attrs["complete"]:
                paper.reproduce_figure1(out, fresh=fresh)
            rows = paper.read_rows(out) if len(done) else done
            first = paper.read_convergence(out)
            # on the page is all that the folder has, not only what this call was asked for
            layers = paper.read_densities(out)
            written = paper.redraw(rows, out, first, layers) if len(rows) else []
        rows.attrs.update(done.attrs)
        _report(rows, first, written, out, as_json=json)

    return command


def redraw_figures(
    source: Annotated[
        Path, typer.Option("--from", metavar="FOLDER", help="With rows as parquet files.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For figures and pages.")] = Path(
        "aprune-figures"
    ),
    json: option.Json = False,
) -> None:
    """Draw all figures again from rows, without training anything."""
    from aprune.experiments import paper

    frame, first = paper.read_rows(source), paper.read_convergence(source)
    with output_folder(out):
        written = paper.redraw(frame, out, first, paper.read_densities(source))
    _report(frame, first, written, out, as_json=json)


def _report(
    frame: "pd.DataFrame",
    first: "pd.DataFrame | None",
    written: list[Path],
    out: Path,
    *,
    as_json: bool,
) -> None:
    from aprune.experiments.claims import judge, judge_convergence

    complete = bool(frame.attrs.get("complete", True))
    verdicts = [] if first is None else [("logistic", "–", judge_convergence(first))]
    verdicts += [
        (str(parent), str(protocol), verdict)
        for (parent, protocol), part in frame.groupby(["parent", "protocol"], sort=False)
        for verdict in judge(part)
    ]
    if as_json:
        print_json(
            {
                "out": str(out),
                "complete": complete,
                "rows": len(frame),
                "files": [str(path) for path in written],
                "verdicts": [
                    {"parent": parent, "protocol": protocol, **asdict(verdict)}
                    for parent, protocol, verdict in verdicts
                ],
            }
        )
    else:
        lines = [(parent, protocol, str(v.number), v.verdict) for parent, protocol, v in verdicts]
        print_table(("parent", "protocol", "claim", "verdict"), lines, left=("parent", "protocol"))
        say(f"{len(frame)} rows and {len(written)} files in {out}. What the claims say, and why:")
        for path in written:
            if path.name == "claims.md":
                say(f"  {path}")
    complain_of(frame.attrs)


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


def reproduce_temperatures(
    data: Annotated[
        str, typer.Option(metavar="NAME,…", help="Some of digits, mnist, made (random quadratics).")
    ] = "digits,mnist,made",
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs in each cell.")] = 5,
    iterations: Annotated[
        int,
        typer.Option(metavar="N", help="Steps; a network takes a third, a quadratic a tenth."),
    ] = 1000,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For PNG, PDF and parquet, replacing older ones.")
    ] = Path("aprune-figures"),
    json: option.Json = False,
) -> None:
    """Which t_s: how descents end against t_s and the step size together.

    In the table: the t_s and the step with the lowest mean, that mean, and every t_s whose best step
    gets to within 1.1 times it.
    """
    from aprune.experiments.temperatures import temperatures

    with output_folder(out):
        result = temperatures(data.split(","), seeds=seeds, iterations=iterations, out=out)
    paths = [str(path) for path in (*result.steps, *result.best, result.parquet)]
    rows = result.table.to_dict("records")
    if json:
        print_json({"table": rows, "files": paths})
        return
    columns = [str(name) for name in result.table.columns]
    lines = [[_plain(row[name]) for name in columns] for row in rows]
    print_table(columns, lines, left=("case",))
    for path in paths:
        say(path)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def reproduce_theorem(
    dimension: Annotated[int, typer.Option(metavar="N", help="D of the problems.")] = 400,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each scheme.")] = 8,
    steps: Annotated[int, typer.Option(metavar="N", help="The largest T.")] = 10_000,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For PNG, PDF and parquet, replacing older ones.")
    ] = Path("aprune-figures"),
    json: option.Json = False,
) -> None:
    """Theorem 1 on convex problems with a known optimum: which bound holds.

    In the table: the start; the largest gap over each bound, above 1 where the bound does not hold
    (corrected takes E r = 0 for granted, with_bias has the bias as it was measured); C, and the
    measured ‖r‖²/G² that it is to bound.
    """
    from aprune.experiments.theorem import theorem

    with output_folder(out):
        result = theorem(dimension=dimension, seeds=seeds, steps=steps, out=out)
    paths = {kind: str(getattr(result, kind)) for kind in ("png", "pdf", "parquet")}
    rows = result.table.to_dict("records")
    if json:
        print_json({"verdict": result.verdict, "table": rows, **paths})
        return
    columns = [str(name) for name in result.table.columns]
    print_table(columns, [[f"{row[name]:.3g}" for name in columns] for row in rows])
    say(result.verdict)
    for kind, path in paths.items():
        say(f"{kind}: {path}")
