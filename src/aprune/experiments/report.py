"""The rows of a comparison as a table and as a figure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aprune.experiments import style
from aprune.maths.statistics import Interval, paired_interval, summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"ap": "AP", "imp": "IMP", "erk": "ERK", "snip": "SNIP", "grasp": "GraSP"}
TITLES |= {"synflow": "SynFlow", "edge_popup": "edge-popup", "set": "SET", "rigl": "RigL"}
RESHUFFLED = ", reshuffled"
"""Ends the name of a method whose connections were moved within their layers."""

FEWEST = 5
"""Seeds below which no interval is shown: resampling two or three numbers pretends to know."""

_DENSE = "dense"
_MANY = 8  # methods that the legend of a column has room for
_DODGE = 1.03  # methods stand side by side, so that no bar hides another


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, ready for a terminal or for markdown."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tabulate(frame: "pd.DataFrame") -> Table:
    """Summarise the rows of `compare`: a line for each sparsity and method.

    Accuracy is mean ± standard deviation over the seeds that did not diverge. The difference to AP is
    taken seed by seed, with a 95 % interval if there are enough of them.

    Args:
        frame: What `compare` returned.

    Returns:
        Header and lines; the dense parent appears once a sparsity, for the difference to AP.
    """
    frame, lines = name_arms(frame), []
    # a column only where methods were free to choose
    mixes = "mixup" in frame and frame["mixup"].nunique() > 1
    for sparsity in sparsities_of(frame):
        for method in frame["method"].unique():
            part = _runs(frame, method, sparsity)
            if len(part) == 0:
                continue
            difference = interval_of(frame, "ap", method, sparsity) if method != "ap" else None
            lines.append(
                (
                    f"{sparsity:g}",
                    title_of(method),
                    _describe_accuracy(part),
                    _describe_count(part),
                    _list(part["lr"]),
                    *([_list(part["mixup"])] if mixes else []),
                    _describe_interval(difference),
                )
            )
    chosen = ("learning rate", "mixup") if mixes else ("learning rate",)
    header = ("sparsity", "method", "accuracy", "seeds", *chosen, "AP − method")
    return Table(header, tuple(lines))


def name_arms(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Give reshuffled rows a method of their own, as `ap, reshuffled`."""
    if "reshuffled" not in frame or not frame["reshuffled"].any():
        return frame
    plain = ~frame["reshuffled"] | frame["method"].str.endswith(RESHUFFLED)
    return frame.assign(method=frame["method"].where(plain, frame["method"] + RESHUFFLED))


def title_of(method: str) -> str:
    """Return the name of a method as it is printed.

    Example:
        >>> title_of("ap, reshuffled")
        'AP, reshuffled'
    """
    base = method.removesuffix(RESHUFFLED)
    return TITLES.get(base, base) + method[len(base) :]


def _list(values: "pd.Series[float]") -> str:
    return ", ".join(f"{value:g}" for value in sorted(values.unique()))


def write_table(frame: "pd.DataFrame") -> str:
    """Return the table as markdown, with a line on what it shows.

    Args:
        frame: What `compare` returned.

    Returns:
        Markdown text.
    """
    if len(frame) == 0:
        return "No retraining is finished yet: run the same command again.\n"
    first = frame.iloc[0]
    table = tabulate(frame)
    lines = [
        f"Parent {_parents(first)}, {first['images']} training images. Accuracy on the test images of"
        " the new task, mean ± standard deviation over seeds; AP − method is the mean of the"
        f" differences seed by seed, with its 95 % interval from {FEWEST} seeds on.",
        "",
        _join(table.header),
        _join(["---"] * len(table.header)),
        *(_join(row) for row in table.rows),
    ]
    diverged = int(frame["diverged"].sum())
    if diverged:
        lines += ["", f"{diverged} retraining(s) diverged and are left out of mean and interval."]
    if not frame.attrs.get("complete", True):
        lines += ["", "Not complete: run the same command again for what is missing."]
    return "\n".join(lines) + "\n"


def interval_of(frame: "pd.DataFrame", method: str, other: str, sparsity: float) -> Interval | None:
    """Return the 95 % interval of the difference of two methods at one sparsity.

    Args:
        frame: What `compare` returned.
        method: The first method; `ap, reshuffled` where connections were moved within their layers.
        other: What is subtracted.
        sparsity: Where; the dense parent is the same everywhere.

    Returns:
        Mean difference over the seeds that both finished; None if there are none.
    """
    frame = name_arms(frame)
    a, b = (
        _runs(frame, name, sparsity).dropna(subset="accuracy").set_index("seed")["accuracy"]
        for name in (method, other)
    )
    seeds = sorted(set(a.index) & set(b.index))
    if not seeds:
        return None
    return paired_interval(a.loc[seeds].to_numpy(), b.loc[seeds].to_numpy())


def sparsities_of(frame: "pd.DataFrame") -> list[float]:
    """Return the sparsities in rising order; that of the dense parent only if it is alone."""
    pruned = frame.loc[frame["method"] != _DENSE, "sparsity"]
    return sorted((pruned if len(pruned) else frame["sparsity"]).unique().tolist())


def draw(frame: "pd.DataFrame") -> "Figure":
    """Draw accuracy against sparsity, so spaced that halving the connections is always as far.

    Args:
        frame: What `compare` returned, with at least one accuracy.

    Returns:
        A figure, of column width unless there are many methods; lines are means, bars and the dense
        parent's band one standard deviation each way.
    """
    with style.styled():
        curves = list(_points(name_arms(frame)))
        many = len(curves) > _MANY
        figure = style.make_figure(
            *((style.PAGE_WIDTH, 3.6) if many else (style.COLUMN_WIDTH, 2.6))
        )
        axes = figure.add_subplot()
        for number, (method, points) in enumerate(curves):
            base, label = method.removesuffix(RESHUFFLED), title_of(method)
            colour, dashes = style.COLOURS.get(base, style.OTHER), style.DASHES.get(base, "-")
            if method == _DENSE:
                _, mean, std = points[0]
                axes.axhspan(mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)
                axes.axhline(mean, color=colour, linestyle=dashes, label=label, zorder=1)
                continue
            sparsities, means, stds = (list(column) for column in zip(*points, strict=True))
            axes.errorbar(
                [_DODGE ** (number - (len(curves) - 1) / 2) * (1 - s) for s in sparsities],
                means,
                yerr=stds,
                color=colour,
                linestyle=dashes,
                marker="o",
                alpha=1.0 if method == base else 0.5,
                markerfacecolor=colour if method == base else "white",
                capsize=2,
                elinewidth=0.8,
                label=label,
            )
        _finish(axes, frame, columns=7 if many else 4)
    return figure


def _points(frame: "pd.DataFrame") -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """Yield each method with sparsity, mean and standard deviation (0 of a single seed)."""
    for method in frame["method"].unique():
        alive = frame[(frame["method"] == method) & frame["accuracy"].notna()]
        points = []
        for sparsity, part in alive.groupby("sparsity"):
            summary = summarise(part["accuracy"].to_numpy())
            points.append((float(sparsity), summary.mean, summary.std if summary.n > 1 else 0.0))
        if points:
            yield method, points


def _finish(axes: "Axes", frame: "pd.DataFrame", *, columns: int) -> None:
    sparsities = sparsities_of(frame)
    axes.set_xscale("log")
    axes.set_xticks([1 - s for s in sparsities], [f"{s:g}" for s in sparsities])
    axes.set_xticks([], minor=True)
    axes.set_xlim(1.25 * (1 - sparsities[0]), 0.8 * (1 - sparsities[-1]))
    axes.set_xlabel("sparsity (fraction of connections removed)")
    axes.set_ylabel("accuracy on the new task")
    first = frame.iloc[0]
    seeds = frame["seed"].nunique()
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    axes.set_title(f"{_parents(first)}, {first['images']} images, {count}")
    # below the axes: inside, it would lie on the dense parent's band
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(loc="outside lower center", ncols=columns)


def _parents(row: "pd.Series[Any]") -> str:
    onto = row.get("onto")
    return f"{row['parent']} → {onto}" if onto else str(row["parent"])


def _runs(frame: "pd.DataFrame", method: str, sparsity: float) -> "pd.DataFrame":
    of_method = frame["method"] == method
    return frame[of_method if method == _DENSE else of_method & (frame["sparsity"] == sparsity)]


def _describe_accuracy(part: "pd.DataFrame") -> str:
    alive = part["accuracy"].dropna()
    return str(summarise(alive.to_numpy())) if len(alive) else "diverged"


def _describe_count(part: "pd.DataFrame") -> str:
    diverged = int(part["diverged"].sum())
    return f"{len(part) - diverged}" + (f" ({diverged} diverged)" if diverged else "")


def _describe_interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval:+.3f}" if interval.n >= FEWEST else f"{interval.mean:+.3f}"


def _join(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"
