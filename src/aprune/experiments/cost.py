"""What accuracy costs: the steps of a search against what its architecture reaches."""

from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.plan import DENSE
from aprune.experiments.report import base_of, name_arms, sparsities_of, title_of
from aprune.maths.statistics import summarise

_FACTOR, _OFFSET = 1.25, 0.12  # between methods of the same cost; where that is nothing
_ROOM = 1.5  # beyond the dearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.figure import Figure


def draw_cost(frame: "pd.DataFrame") -> "Figure":
    """Draw accuracy against the training steps of the search, a panel for each sparsity.

    Args:
        frame: What `compare` returned, with at least one accuracy.

    Returns:
        A figure; points are means, bars one standard deviation each way. Steps are spaced by factors,
        and none at all has a place of its own on the left.
    """
    frame = name_arms(frame).dropna(subset="accuracy")
    sparsities = sparsities_of(frame)
    with style.styled():
        figure = style.make_figure(max(style.COLUMN_WIDTH, 2.4 * len(sparsities)), 2.6)
        panels = figure.subplots(1, len(sparsities), sharey=True, squeeze=False)[0]
        for axes, sparsity in zip(panels, sparsities, strict=True):
            dense = frame["method"].map(base_of) == DENSE
            here = frame[(frame["sparsity"] == sparsity) | dense]
            places = list(_side_by_side(here))
            for x, method, part in places:
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
            axes.set_xscale("symlog", linthresh=1)
            cheapest, dearest = min(x for x, _, _ in places), max(x for x, _, _ in places)
            axes.set_xlim(min(-0.5, cheapest - _OFFSET), max(1.0, _ROOM * dearest))
            axes.set_title(f"sparsity {sparsity:g}")
            axes.set_xlabel("steps of the search")
        panels[0].set_ylabel("accuracy on the new task")
        style.add_legend(figure, *panels[0].get_legend_handles_labels(), most=5)
    return figure


def _side_by_side(frame: "pd.DataFrame") -> "Iterator[tuple[float, str, pd.DataFrame]]":
    """Yield the methods with a place for each, so that none of the same cost hides another."""
    costs = frame.groupby("method", sort=False)["search_steps"].mean()
    for steps, alike in costs.groupby(costs):
        middle = (len(alike) - 1) / 2
        for number, method in enumerate(alike.index):
            aside = number - middle
            x = steps * _FACTOR**aside if steps else _OFFSET * aside
            yield float(x), str(method), frame[frame["method"] == method]
