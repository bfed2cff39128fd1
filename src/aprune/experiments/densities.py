"""How many connections the methods keep in each layer."""

from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.report import title_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_MOST = 4  # panels in a row
_PANEL = 2.2  # inches


def draw_densities(densities: "pd.DataFrame") -> "Figure":
    """Draw the density of every layer, a panel for each sparsity, four in a row.

    Args:
        densities: A row for each layer of each architecture: `method`, `seed`, `sparsity`, `layer`, its
            `place` in the network, `density`.

    Returns:
        A figure; lines are means over seeds, bands reach from the smallest to the largest. An empty
        layer lies on the lower edge.
    """
    from matplotlib.ticker import MaxNLocator

    sparsities = sorted(densities["sparsity"].unique())
    floor = densities.loc[densities["density"] > 0, "density"].min() / 2
    columns = min(_MOST, len(sparsities))
    rows = -(-len(sparsities) // columns)
    with style.styled():
        width = max(style.COLUMN_WIDTH, _PANEL * columns)
        figure = style.make_figure(width, 0.7 + 2.1 * rows)
        places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for unused in places[len(sparsities) :]:
            unused.remove()
        panels = places[: len(sparsities)]
        for axes, sparsity in zip(panels, sparsities, strict=True):
            here = densities[densities["sparsity"] == sparsity]
            for method, part in here.groupby("method", sort=False):
                colour = style.COLOURS.get(str(method), style.OTHER)
                layers = part.groupby("place")["density"]
                low, mean, high = (
                    getattr(layers, what)().clip(lower=floor) for what in ("min", "mean", "max")
                )
                axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)
                axes.plot(
                    mean.index,
                    mean,
                    color=colour,
                    linestyle=style.DASHES.get(str(method), "-"),
                    label=title_of(str(method)) if axes is panels[0] else None,
                )
            axes.set_yscale("log")
            axes.set_ylim(floor, 1.2)
            axes.set_title(f"sparsity {sparsity:g}")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.tick_params(labelbottom=True)  # nothing may stand below
        for axes in panels[-columns:]:
            axes.set_xlabel("layer, from the image on")
        for axes in panels[::columns]:
            axes.set_ylabel("density")
        style.add_legend(figure, *panels[0].get_legend_handles_labels(), most=5)
    return figure
