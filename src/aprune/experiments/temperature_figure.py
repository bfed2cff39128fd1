"""Figures of how descents end against t_s and the step size: see `temperatures`."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.temperature_case import CASES, FINE, Case

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAPER = 100  # t_l/t_s of the paper's figure
_RULE = 8  # t_s at which the drift of w and the price of a one agree


def tune(part: "pd.DataFrame") -> "pd.DataFrame":
    """Return for each t_s the step with the lowest mean over the seeds.

    Args:
        part: Rows of one case, t_l and penalty. A mean over a run that died is not finite, and no
            candidate.

    Returns:
        By t_s: step, objective (the mean), low and high (of the seeds).
    """
    ends = part.assign(objective=part["objective"].fillna(float("inf")))
    cells = ends.groupby(["t_s", "step"])["objective"]
    flat = cells.agg(objective="mean", low="min", high="max").reset_index()
    return flat.loc[flat.groupby("t_s")["objective"].idxmin()].set_index("t_s")


def draw_steps(frame: "pd.DataFrame") -> "Figure":
    """Draw a heat map of every case with one t_l and one penalty.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        Colours are means over the seeds, up to four times the lowest; dots mark the best step of each
        t_s, the star the best of all, and the dashed line t_l/100.
    """
    import numpy as np
    from matplotlib.colors import LogNorm

    names = [name for name in frame["case"].unique() if _is_map(CASES[name])]
    across = min(4, len(names))
    down = -(-len(names) // across)
    with style.styled():
        figure = style.make_figure(style.PAGE_WIDTH, 0.4 + 1.85 * down)
        grid = figure.subplots(down, across, squeeze=False)
        mesh = None
        for place, axes in enumerate(grid.flat):
            if place >= len(names):
                axes.set_visible(False)
                continue
            case, part = CASES[names[place]], frame[frame["case"] == names[place]]
            ends = part.assign(objective=part["objective"].fillna(float("inf")))
            table = ends.groupby(["step", "t_s"])["objective"].mean().unstack()
            least = table.to_numpy()[np.isfinite(table.to_numpy())].min()
            mesh = axes.imshow(
                table / least, origin="lower", aspect="auto", cmap="viridis_r", norm=LogNorm(1, 4)
            )
            tuned = tune(part)
            first = tuned["objective"].idxmin()
            for t_s, row in tuned.iterrows():
                spot = (table.columns.get_loc(t_s), table.index.get_loc(row["step"]))
                shape, size = ("*", 8) if t_s == first else ("o", 3.5)
                axes.plot(
                    *spot,
                    shape,
                    markersize=size,
                    markerfacecolor="white",
                    markeredgecolor="black",
                    markeredgewidth=0.6,
                )
            ratio = np.interp(
                np.log(case.t_l[0] / _PAPER), np.log(table.columns), range(len(table.columns))
            )
            axes.axvline(ratio, color=style.COLOURS["imp"], linewidth=1, linestyle="--", zorder=1)
            axes.set_title(case.title, fontsize=7)
            axes.set_xticks(range(len(table.columns)), _ratios(table.columns, case.t_l[0]))
            axes.set_yticks(range(len(table.index)), [f"{step:g}" for step in table.index])
            axes.tick_params(labelsize=6, length=2)
            axes.grid(False)
            axes.spines[:].set_visible(False)
            if place % across == 0:
                axes.set_ylabel("step size")
            if place + across >= len(names):
                axes.set_xlabel("$t_l/t_s$")
        if mesh is not None:
            scale = figure.colorbar(mesh, ax=grid, aspect=30, pad=0.01, extend="max")
            scale.set_label("mean at the end / lowest mean")
            scale.set_ticks([1, 1.5, 2, 3, 4], labels=["1", "1.5", "2", "3", "4"], minor=False)
            scale.ax.minorticks_off()
            scale.outline.set_visible(False)
    return figure


def draw_best(frame: "pd.DataFrame") -> "Figure":
    """Draw the best over the step sizes against t_s.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        Lines are means over the seeds at the step where that is lowest, bands run from the lowest to
        the highest seed. A dotted line marks 8 where a drift prunes. Several γ are each divided by their
        lowest mean.
    """
    present = set(frame["case"])
    panels = {
        title: [name for name in names if name in present] for title, names in _PANELS.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    with style.styled():
        figure = style.make_figure(style.PAGE_WIDTH, 2.0 * down)
        grid = figure.subplots(down, across, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.set_visible(False)
                continue
            title = list(panels)[place]
            _draw_panel(axes, frame[frame["case"].isin(panels[title])])
            axes.set_title(title, fontsize=7)
            axes.set_ylabel(_UNITS.get(panels[title][0], "objective, best step"))
            axes.set_xlabel("$t_s$")
    return figure


_PANELS: Mapping[str, Sequence[str]] = {
    "digits": ("digits", "digits-w", "digits-price"),
    "MNIST": ("mnist",),
    "network": ("mlp", "mlp-absolute"),
    "quadratic problems": ("quadratic", "quadratic-exactly"),
    "digits, several $t_l$": ("digits-t_l",),
    r"digits, several $\gamma$": ("digits-penalty",),
}
_UNITS = {
    "mlp": "training loss, best step",
    "quadratic": "gap, best step",
    "digits-penalty": "objective / lowest",
}
_LOOKS = ("ap", "random", "imp", "snip")  # colours and dashes of the style
_LABELS = {
    "digits": "one step size",
    "digits-w": "step of $w$ alone",
    "digits-price": "price itself",
    "mnist": "one step size",
    "mlp": "relative step",
    "mlp-absolute": "absolute step",
    "quadratic": "any number",
    "quadratic-exactly": "10 of 40",
}


def _draw_panel(axes: "Axes", rows: "pd.DataFrame") -> None:
    groups = list(rows.groupby(["case", "t_l", "penalty"], sort=False))
    for look, ((case, t_l, penalty), part) in zip(_LOOKS, groups, strict=False):
        tuned = tune(part)
        label = _LABELS.get(str(case))
        if case == "digits-t_l":
            label = f"$t_l$ = {t_l:,g}"
        elif case == "digits-penalty":
            label = rf"$\gamma$ = {penalty:g}"
        unit = tuned["objective"].min() if case == "digits-penalty" else 1.0
        colour, x = style.COLOURS[look], tuned.index.to_numpy()
        low, mean, high = (tuned[name] / unit for name in ("low", "objective", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, mean, "o", color=colour, linestyle=style.DASHES[look], label=label)
    style.make_logarithmic(axes)
    if (rows["penalty"] > 0).any():
        axes.axvline(_RULE, color="0.5", linewidth=0.6, linestyle=":", zorder=0)
    if set(rows["t_s"]) <= set(FINE):
        axes.set_yscale("linear")  # a narrow range
        axes.set_xticks(FINE, [f"{t_s:g}" for t_s in FINE])
        axes.minorticks_off()
    axes.legend(fontsize=6, frameon=True, facecolor="white", edgecolor="none", framealpha=1)


def _ratios(t_s: Sequence[float], t_l: float) -> list[str]:
    """Return t_l/t_s where it is a power of ten, and nothing elsewhere: there is little room."""
    exponents = [math.log10(t_l / value) for value in t_s]
    return [
        f"{10 ** round(e):,}" if math.isclose(e, round(e), abs_tol=1e-9) else "" for e in exponents
    ]


def _is_map(case: Case) -> bool:
    return len(case.t_l) == len(case.penalties) == 1
