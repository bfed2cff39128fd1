"""Who beats whom: every method against every other, seed by seed."""

import math
from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.report import FEWEST, interval_of, name_arms, sparsities_of, title_of
from aprune.maths.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.42  # inches
_LETTER = 0.065  # inches: of a method's name
_TITLE = 0.35
_WIDE = 12.0  # inches: what does not fit side by side goes into rows
_FULL = 0.1  # the difference from which on colours are full


def methods_of(frame: "pd.DataFrame") -> list[str]:
    """Return the methods that have an accuracy, the best first.

    Example:
        >>> import pandas as pd
        >>> methods_of(pd.DataFrame({"method": ["ap", "imp"], "accuracy": [0.5, 0.6]}))
        ['imp', 'ap']
    """
    means = name_arms(frame).dropna(subset="accuracy").groupby("method", sort=False)["accuracy"]
    return list(means.mean().sort_values(ascending=False).index)


def is_decided(interval: Interval) -> bool:
    """Tell whether the whole 95 % interval of a difference lies on one side of zero."""
    return interval.n >= FEWEST and (interval.low > 0 or interval.high < 0)


def write_matrix(frame: "pd.DataFrame") -> str:
    """Return a table for each sparsity as markdown; the mean of row − column, decided ones in bold."""
    methods, lines = methods_of(frame), []
    for sparsity in sparsities_of(frame):
        lines += ["", f"Sparsity {sparsity:g}, row − column:", ""]
        lines += [f"| | {' | '.join(title_of(method) for method in methods)} |"]
        lines += ["| --- " * (len(methods) + 1) + "|"]
        for row in methods:
            cells = [_describe(interval_of(frame, row, column, sparsity)) for column in methods]
            cells[methods.index(row)] = ""
            lines.append(f"| {title_of(row)} | {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def _describe(interval: Interval | None) -> str:
    if interval is None:
        return ""
    text = f"{interval.mean:+.3f}"
    return f"**{text}**" if is_decided(interval) else text


def draw_matrix(frame: "pd.DataFrame") -> "Figure":
    """Draw the differences of all pairs, a square for each sparsity.

    Args:
        frame: What `compare` returned, with accuracies of at least two methods.

    Returns:
        A figure; blue where the method of the row is ahead, orange where it is behind, fully from 0.1
        on, and a number in bold where the whole 95 % interval says so.
    """
    methods, sparsities = methods_of(frame), sparsities_of(frame)
    pairs = {
        (s, row, column): interval_of(frame, row, column, s)
        for s in sparsities
        for row in methods
        for column in methods
        if row != column
    }
    side = _CELL * len(methods)
    beside = _LETTER * max(len(title_of(method)) for method in methods) + 0.2
    columns = len(sparsities)
    if columns * side > _WIDE:
        columns = math.ceil(math.sqrt(columns))
    rows = math.ceil(len(sparsities) / columns)
    with style.styled():
        figure = style.make_figure(beside + (side + 0.2) * columns, (side + beside + _TITLE) * rows)
        for place, sparsity in enumerate(sparsities):
            axes = figure.add_subplot(rows, columns, place + 1)
            for y, row in enumerate(methods):
                for x, column in enumerate(methods):
                    pair = pairs.get((sparsity, row, column))
                    if pair is not None:
                        _draw_cell(axes, x, y, pair)
            _finish(axes, methods, first=place % columns == 0)
            axes.set_title(f"sparsity {sparsity:g}, row − column")
    return figure


def _draw_cell(axes: "Axes", x: int, y: int, pair: Interval) -> None:
    from matplotlib.patches import Rectangle

    strength = min(1.0, abs(pair.mean) / _FULL)
    colour = style.COLOURS["ap" if pair.mean >= 0 else "imp"]
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=colour, alpha=strength, linewidth=0))
    axes.text(
        x,
        y,
        f"{pair.mean:+.3f}".replace("0.", "."),
        ha="center",
        va="center",
        fontsize=6,
        fontweight="bold" if is_decided(pair) else "normal",
        color="white" if strength > 0.9 else "black",
    )


def _finish(axes: "Axes", methods: list[str], *, first: bool) -> None:
    titles, places = [title_of(method) for method in methods], range(len(methods))
    axes.set_xticks(places, titles, rotation=90)
    axes.set_yticks(places, titles if first else [""] * len(methods))
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_box_aspect(1)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
