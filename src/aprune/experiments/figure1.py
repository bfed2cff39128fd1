"""Figure 1 of the paper: the objective against iterations for t_s = t_l, t_l/100 and t_l/1000.

`convergence` holds the problem and the search. One setting serves the three t_s; it is the one that
suits the exact gradient, t_s = t_l, best (see `convergence.Setting`), so that the comparison leans
towards the scheme it is made against. t_s and the step size act in part as one; `temperatures` varies
both.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aprune.errors import SettingError
from aprune.experiments import style
from aprune.experiments.convergence import Setting, descend
from aprune.files import check_writable, writing
from aprune.maths.statistics import paired_interval, summarise
from aprune.tasks import load_task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DATA = ("digits", "mnist")
T_L = 1000.0
EXACT, WARM, WARMEST = T_L, T_L / 100, T_L / 1000
T_S = (EXACT, WARM, WARMEST)

_NAMES = {EXACT: "t_l", WARM: "t_l/100", WARMEST: "t_l/1000"}
_LOOKS = {EXACT: "imp", WARM: "ap", WARMEST: "random"}  # colours and dashes of the style


@dataclass(frozen=True, eq=False)
class Figure1:
    """What `figure1` found and where it wrote it.

    Attributes:
        frame: One row for each t_s, seed and recorded iteration, with the columns data, t_l, t_s,
            seed, iteration, objective and active (connections left).
        verdict: One sentence on what the numbers say about the paper's claim.
        png: The figure as PNG.
        pdf: The figure as PDF.
        parquet: The frame as parquet.
    """

    frame: "pd.DataFrame"
    verdict: str
    png: Path
    pdf: Path
    parquet: Path


def figure1(
    data: str = "digits",
    *,
    seeds: int = 5,
    iterations: int = 5000,
    out: Path | str,
    setting: Setting | None = None,
) -> Figure1:
    """Run figure 1 and write `figure1-<data>.png`, `.pdf` and `.parquet`.

    Args:
        data: "digits" (8 × 8 pixels, the 64-dimensional model of the paper) or "mnist" (28 × 28);
            the classes are 0 and 1 and the images those for training.
        seeds: How many runs for each t_s; their seeds are 0, 1, ….
        iterations: Steps of each run.
        out: Folder for the files; it is made if need be.
        setting: Penalty, step size and start; `Setting()` by default.

    Returns:
        The numbers, a sentence about them and the paths.

    Example:
        >>> import tempfile
        >>> result = figure1(seeds=2, iterations=20, out=tempfile.mkdtemp())
        >>> result.png.name, sorted(result.frame.t_s.unique().tolist())
        ('figure1-digits.png', [1.0, 10.0, 1000.0])
    """
    if data not in DATA:
        raise SettingError(f"got {data!r} as the data of figure 1; choose {' or '.join(DATA)}")
    if seeds < 1 or iterations < 1:
        raise SettingError(
            f"got {seeds} seeds and {iterations} iterations for figure 1; give at least 1 of each"
        )
    out = check_writable(out)
    task = load_task(data, classes=[0, 1])
    frame = descend(
        task.train_images.flatten(1).float() / 255,
        task.train_labels.float(),
        t_l=T_L,
        t_s=T_S,
        seeds=range(seeds),
        iterations=iterations,
        setting=setting,
    )
    frame.insert(0, "data", data)
    parquet = out / f"figure1-{data}.parquet"
    with writing(parquet) as temporary:
        frame.to_parquet(temporary, index=False)
    png, pdf = style.save(draw(frame), out / f"figure1-{data}")
    return Figure1(frame=frame, verdict=judge(frame), png=png, pdf=pdf, parquet=parquet)


def judge(frame: "pd.DataFrame") -> str:
    """Say in one sentence what the numbers say about the paper's three statements.

    They are that t_l/100 ends below t_l, that it gets there sooner, and that t_l/1000 prunes all.

    Args:
        frame: The frame of `Figure1`.

    Returns:
        Counts of seeds, means ± standard deviations and a paired 95 % interval.
    """
    last = int(frame["iteration"].max())
    final = frame[frame["iteration"] == last].sort_values("seed")
    exact, warm, warmest = (final.loc[final["t_s"] == t_s, "objective"].to_numpy() for t_s in T_S)
    left = final.loc[final["t_s"] == WARMEST, "active"].to_numpy()
    runs = len(exact)
    interval = f", difference {paired_interval(warm, exact):.3f}" if runs > 1 else ""
    return (
        f"On {frame['data'].iloc[0]}, t_s = t_l/100 ends below t_s = t_l on {(warm < exact).sum()}"
        f" of {runs} seeds ({summarise(warm)} against {summarise(exact)}{interval}) and"
        f" {_describe_speed(frame, exact.mean(), last)}; t_s = t_l/1000 ends above t_l/100 on"
        f" {(warmest > warm).sum()} of {runs} ({summarise(warmest)}) and prunes everything on"
        f" {(left == 0).sum()} of {runs} ({summarise(left):.1f} of {frame['active'].max()}"
        " connections left)."
    )


def _describe_speed(frame: "pd.DataFrame", goal: float, last: int) -> str:
    """Say when the mean of t_l/100 first gets to where t_l ends."""
    curve = frame[frame["t_s"] == WARM].groupby("iteration")["objective"].mean()
    there = curve.index[curve <= goal]
    if len(there) == 0:
        return f"does not get to where t_l ends in {last:,} iterations"
    return f"gets to where t_l ends in {there[0]:,} of {last:,} iterations"


def draw(frame: "pd.DataFrame") -> "Figure":
    """Draw the objective against the iterations.

    Args:
        frame: The frame of `Figure1`.

    Returns:
        A figure of column width: lines are means, bands run from the lowest to the highest seed.
    """
    last = frame["iteration"].max()
    with style.styled():
        figure = style.make_figure(height=2.5)
        axes = figure.add_subplot()
        for t_s in T_S:
            rows = frame[(frame["t_s"] == t_s) & (frame["iteration"] > 0)]
            curve = rows.groupby("iteration")["objective"].agg(["mean", "min", "max"])
            active = summarise(rows.loc[rows["iteration"] == last, "active"].to_numpy())
            look = _LOOKS[t_s]
            colour, x = style.COLOURS[look], curve.index.to_numpy()
            axes.fill_between(x, curve["min"], curve["max"], color=colour, alpha=0.2, linewidth=0)
            label = f"$t_s = {_NAMES[t_s]}$,  $|m|$ = {active:.1f}"
            axes.plot(x, curve["mean"], color=colour, linestyle=style.DASHES[look], label=label)
        axes.axhline(math.log(2), color="0.5", linewidth=0.6, linestyle=":", zorder=0)
        axes.annotate(
            "empty model",
            (0.99, math.log(2)),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            fontsize=6,
            color="0.4",
        )
        axes.set_xlim(1, max(last, 2))
        axes.set_xlabel("iteration")
        axes.set_ylabel("objective at the binary mask")
        style.make_logarithmic(axes)
        axes.legend(loc="upper right")
    return figure
