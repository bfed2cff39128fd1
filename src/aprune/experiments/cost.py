"""What accuracy costs: the steps of a search against what its architecture reaches."""

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.plan import DENSE
from aprune.experiments.report import base_of, name_arms, sparsities_of, title_of
from aprune.maths.statistics import summarise

_APART = 0.5  # between methods of the same cost, as a part of what each cost has around it

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.figure import Figure


def draw_cost(frame: "pd.DataFrame") -> "Figure":
    """Draw accuracy against the training steps of the search, a panel for each sparsity.

    Args:
        frame: What `compare` returned, with at least one accuracy.

    Returns:
        A figure; points are means, bars one standard deviation each way. Each number of steps has a
        place of its own, in rising order, in which all methods that take so many are side by side.
    """
    frame = name_arms(frame).dropna(subset="accuracy")
    sparsities = sparsities_of(frame)
    with style.styled():
        figure = style.make_figure(max(style.COLUMN_WIDTH, 2.4 * len(sparsities)), 2.6)
        panels = figure.subplots(1, len(sparsities), sharey=True, squeeze=False)[0]
        for axes, sparsity in zip(panels, sparsities, strict=True):
            dense = frame["method"].map(base_of) == DENSE
            here = frame[(frame["sparsity"] == sparsity) | dense]
            costs = _by_cost(here)
            for x, method, part in _side_by_side(here, costs):
                level = summarise(part["accuracy"].to_numpy())
                axes.errorbar(
                    x,
                    level.mean,
                    yerr=level.std if level.n > 1 else 0.0,
                    capsize=2,
                    elinewidth=0.8,
                    label=title_of(method) if axes is panels[0] else None,
                    **{**style.look_of(method), "linestyle": ""},
                )
            borders = _borders(costs)
            axes.set_xlim(borders[0], borders[-1])
            middles = [(left + right) / 2 for left, right in pairwise(borders)]
            axes.set_xticks(middles, [f"{steps:,.0f}" for steps in costs])
            for border in borders[1:-1]:
                axes.axvline(border, color="#E5E5E5", linewidth=0.8, zorder=0)
            axes.set_title(f"sparsity {sparsity:g}")
            axes.set_xlabel("steps of the search")
        panels[0].set_ylabel("accuracy on the new task")
        style.add_legend(figure, *panels[0].get_legend_handles_labels(), most=5)
    return figure


def _by_cost(frame: "pd.DataFrame") -> dict[float, list[str]]:
    """Return which methods take how many steps, in rising order."""
    costs = frame.groupby("method", sort=False)["search_steps"].mean()
    alike = {float(steps): list(group.index) for steps, group in costs.groupby(costs)}
    return dict(sorted(alike.items()))


def _borders(costs: Mapping[float, list[str]]) -> list[float]:
    """Give each number of steps room, the more the more methods there are side by side."""
    return list(
        accumulate((1 + _APART * (len(alike) - 1) for alike in costs.values()), initial=0.0)
    )


def _side_by_side(
    frame: "pd.DataFrame", costs: Mapping[float, list[str]]
) -> "Iterator[tuple[float, str, pd.DataFrame]]":
    """Yield the methods with a place for each, so that none of the same cost hides another."""
    for left, alike in zip(_borders(costs), costs.values(), strict=False):
        for number, method in enumerate(alike):
            yield left + 0.5 + _APART * number, method, frame[frame["method"] == method]
