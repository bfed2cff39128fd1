"""Theorem 1 under test: the gap that is left after T steps, beside the bound as printed and corrected.

`quadratic` holds the problem and the steps, `maths.bound` the bounds; docs/theory.md has the proof. The
bounds are on expectations: mean gaps over seeds are compared with the bounds for the largest R² and M
of the runs, their mean bias and the G of the whole cube. Runs start near the middle of the cube, or far
out at its corners, where a step of v is next to nothing and the error r of the gradient is the gradient
itself.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from aprune.errors import SettingError
from aprune.experiments import style
from aprune.experiments.quadratic import Optimum, Scheme, descend, make_quadratic
from aprune.files import check_writable, writing
from aprune.maths.bound import Theorem

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPERATURES = ((4.0, 4.0), (100.0, 0.16), (20.0, 2.0), (100.0, 10.0))
"""(t_l, t_s): the exact gradient; a warm one with the same product; and two with larger ones."""

C = (0.01, 0.1, 1.0)
NEAR, FAR = 0.5, 10.0
BOUNDS = ("printed", "corrected", "with_bias", "unconditional")

_PANELS = {
    "near start, exact gradient": ("binary", Scheme(4.0, 4.0, 0.01, NEAR)),
    "far start, exact gradient": ("binary", Scheme(4.0, 4.0, 1.0, FAR)),
    "far start, warm gradient": ("binary", Scheme(100.0, 0.16, 1.0, FAR)),
    "near start, temperatures of AP": ("binary", Scheme(100.0, 10.0, 0.1, NEAR)),
}
# colours and dashes of the style, whose methods do not appear here
_LOOKS = {
    "average": ("measured, average", "ap"),
    "last": ("measured, last step", "snip"),
    "printed": ("printed bound", "imp"),
    "with_bias": ("corrected bound with the measured bias", "edge_popup"),
    "corrected": ("the same with no bias, as if E r = 0", "random"),
    "unconditional": ("the same with the largest bias", "dense"),
}
_CASE = ["optimum", "t_l", "t_s", "c", "spread"]


@dataclass(frozen=True, eq=False)
class TheoremTest:
    """What `theorem` found and where it wrote it.

    Attributes:
        frame: The rows of `quadratic.descend`, with the column `optimum` before them.
        table: One row for each pair of temperatures and start (see `tabulate`).
        verdict: How often each bound held, in words.
        png: The figure as PNG.
        pdf: The figure as PDF.
        parquet: The frame as parquet.
    """

    frame: "pd.DataFrame"
    table: "pd.DataFrame"
    verdict: str
    png: Path
    pdf: Path
    parquet: Path


def theorem(
    *, dimension: int = 400, seeds: int = 8, steps: int = 10_000, out: Path | str
) -> TheoremTest:
    """Put Theorem 1 to the test and write `theorem.png`, `.pdf` and `.parquet`.

    Args:
        dimension: D of both problems.
        seeds: How many runs of each scheme; their seeds are 0, 1, ….
        steps: The largest T.
        out: Folder for the files; it is made if need be.

    Returns:
        The numbers, a sentence about them and the paths.

    Example:
        >>> import tempfile
        >>> result = theorem(dimension=5, seeds=1, steps=10, out=tempfile.mkdtemp())
        >>> result.png.name, len(result.table)
        ('theorem.png', 8)
    """
    if dimension < 1 or seeds < 1 or steps < 1:
        raise SettingError(
            f"got {dimension} dimensions, {seeds} seeds and {steps} steps: give at least 1 of each"
        )
    import pandas as pd

    out = check_writable(out)
    schemes = [
        Scheme(t_l, t_s, c, spread)
        for t_l, t_s in TEMPERATURES
        for c in C
        for spread in (NEAR, FAR)
    ]
    parts = {
        optimum: descend(
            make_quadratic(optimum, dimension=dimension), schemes, seeds=range(seeds), steps=steps
        )
        for optimum in get_args(Optimum)
    }
    frame = pd.concat(parts, names=["optimum", None]).reset_index("optimum").reset_index(drop=True)
    parquet = out / "theorem.parquet"
    with writing(parquet) as temporary:
        frame.to_parquet(temporary, index=False)
    png, pdf = style.save(draw(frame), out / "theorem")
    return TheoremTest(frame, tabulate(frame), judge(frame), png=png, pdf=pdf, parquet=parquet)


def gather(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Put the runs of each case together, as the bounds ask for it.

    R² and M stand outside the expectation, so they are the largest of the runs; gaps and the bias are
    inside, so they are means.

    Returns:
        One row for each optimum, scheme and T: `average`, `last` and `bias`; `r2`, `m` and `g`; and the
        bounds for these.
    """
    import pandas as pd

    rules = dict.fromkeys(("average", "last", "bias"), "mean") | dict.fromkeys(
        ("r2", "m", "g"), "max"
    )
    cases = frame.groupby([*_CASE, "steps"], sort=False, as_index=False).agg(rules)
    bounds = []
    for case in cases.to_dict("records"):
        constants = {name: case[name] for name in ("t_l", "t_s", "c", "g", "m", "r2")}
        bounds.append(Theorem(**constants).bounds(case["steps"], case["bias"]))
    return cases.join(pd.DataFrame(bounds))


def compare(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Divide mean gaps by bounds, at every T of every case; above 1 the bound does not hold.

    Returns:
        One row for each optimum, scheme and T: `last/printed`, and `average` over each of the bounds;
        infinite where a bias takes a bound to 0 or below.
    """
    cases = gather(frame)
    ratios = {"last/printed": cases["last"] / cases["printed"]}
    for name in BOUNDS:
        ratio = cases["average"] / cases[name]
        ratios[f"average/{name}"] = ratio.where(cases[name] > 0, math.inf)
    return cases[[*_CASE, "steps"]].assign(**ratios)


def tabulate(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the worst of both problems, all c and all T for each pair of temperatures and start.

    Returns:
        The largest ratios of `compare`; C; and the measured ‖r‖²/G²: the mean over all steps, averaged
        over runs, and the largest.
    """
    keys = ["spread", "t_l", "t_s"]
    table = compare(frame).groupby(keys, sort=False).max(numeric_only=True)
    whole = frame[frame["steps"] == frame["steps"].max()].groupby(keys, sort=False)
    table["C"] = whole["constant"].max()
    table["ratio_mean"] = whole["ratio_mean"].mean()
    table["ratio_max"] = whole["ratio_max"].max()
    return table.drop(columns=["c", "steps"]).reset_index().sort_values("spread", kind="stable")


def judge(frame: "pd.DataFrame") -> str:
    """Say how often each bound was crossed and by how much.

    Args:
        frame: The frame of `TheoremTest`.

    Returns:
        Counts of cases, a case being one problem with one scheme, over all T; and of single runs, each
        with the bounds for its own R², M and bias.
    """
    worst = compare(frame).groupby(_CASE).max()

    def tell(column: str) -> str:
        values = worst[column]
        return f"in {(values > 1).sum()} of {len(values)} cases (worst {values.max():.3g} times)"

    near = worst.xs(NEAR, level="spread")
    crossed = [str((near[f"average/{bound}"] > 1).sum()) for bound in BOUNDS]
    above = {bound: frame["average"] > frame[bound] for bound in BOUNDS}
    runs = frame[_CASE].assign(seed=frame["seed"], **above).groupby([*_CASE, "seed"]).any()
    return (
        f"With up to {frame['steps'].max():,} steps the gap of the last step is above the printed"
        f" bound {tell('last/printed')}, that of the average {tell('average/printed')}. The corrected"
        f" bound with the measured bias is crossed {tell('average/with_bias')}; with no bias, as if"
        f" E r = 0, {tell('average/corrected')}; with the largest bias {tell('average/unconditional')}."
        f" Of the {len(near)} cases with the near start the average crosses the bounds"
        f" {', '.join(BOUNDS)} in {', '.join(crossed)}; of the {len(runs)} single runs in"
        f" {', '.join(str(runs[bound].sum()) for bound in BOUNDS)}."
    )


def draw(frame: "pd.DataFrame") -> "Figure":
    """Draw the gap and the bounds against T in four cases.

    Args:
        frame: The frame of `TheoremTest`.

    Returns:
        A figure of page width. Measured lines are means, with bands from the lowest to the highest
        seed; bounds are those of `gather`.
    """
    with style.styled():
        figure = style.make_figure(style.PAGE_WIDTH, height=4.8)
        grid = figure.subplots(2, 2, sharex=True)
        for axes, (title, (optimum, scheme)) in zip(grid.flat, _PANELS.items(), strict=True):
            chosen = (
                (frame["optimum"] == optimum)
                & (frame["t_l"] == scheme.t_l)
                & (frame["t_s"] == scheme.t_s)
                & (frame["c"] == scheme.c)
                & (frame["spread"] == scheme.spread)
            )
            _draw_case(axes, frame[chosen])
            numbers = f"$t_l$ = {scheme.t_l:g}, $t_s$ = {scheme.t_s:g}, $c$ = {scheme.c:g}"
            axes.set_title(f"{title}\n{numbers}", loc="left")
        for axes in grid[:, 0]:
            axes.set_ylabel("distance of $F$ from its optimum")
        for axes in grid[1]:
            axes.set_xlabel("steps $T$")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_case(axes: "Axes", rows: "pd.DataFrame") -> None:
    from matplotlib.ticker import LogLocator

    case = gather(rows).set_index("steps")
    for column, (label, look) in _LOOKS.items():
        x, colour = case.index.to_numpy(), style.COLOURS[look]
        if column not in BOUNDS:
            seeds = rows.groupby("steps")[column]
            axes.fill_between(x, seeds.min(), seeds.max(), color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, case[column], color=colour, linestyle=style.DASHES[look], label=label)
    style.make_logarithmic(axes)
    axes.yaxis.set_major_locator(LogLocator(numticks=7))  # ranges differ: whole decades only
    axes.set_xlim(1, max(2, rows["steps"].max()))
