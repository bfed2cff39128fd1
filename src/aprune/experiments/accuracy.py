"""Accuracy against sparsity, and what AP is ahead by."""

from collections.abc import Iterator
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

from aprune.experiments import style
from aprune.experiments.plan import DENSE
from aprune.experiments.report import (
    FEWEST,
    base_of,
    interval_of,
    name_arms,
    parents_of,
    sparsities_of,
    title_of,
)
from aprune.maths.statistics import summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW, _MANY = 4, 8  # curves whose bands can be told apart; that the legend of a column has room for
_DODGE = 1.03  # bars stand side by side, so that none hides another
_WIDEST = 1.4  # all of them, and no more than this power of the way to the next sparsity
_SHARE = 0.45
_APART = 0.08  # of the axis between two labels
_ASIDE = 0.08  # between the seeds and their mean
_AHEAD_OF = "ap"

Points = list[tuple[float, float, float]]


def draw_accuracy(frame: "pd.DataFrame") -> "Figure":
    """Draw accuracy against sparsity, so spaced that halving the connections is always as far.

    Args:
        frame: What `compare` returned, with at least one accuracy.

    Returns:
        A figure, of column width unless there are many methods; lines are means, bands or bars one
        standard deviation each way. With enough seeds a second panel has the differences of AP to the
        others seed by seed, with their 95 % intervals: what all methods have in common is not in it. A
        dense parent that is alone has no sparsity, and every seed is shown instead.
    """
    frame = name_arms(frame)
    curves = list(_points(frame))
    if all(base_of(method) == DENSE for method in frame["method"]):
        return _draw_dense(frame, [method for method, _ in curves])
    many = len(curves) > _MANY
    width = style.PAGE_WIDTH if many else style.COLUMN_WIDTH
    with style.styled():
        if _AHEAD_OF in dict(curves) and 1 < len(curves) <= _FEW and _seeds(frame) >= FEWEST:
            figure = style.make_figure(width, 4.0)
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
            _draw_differences(below, frame, [method for method, _ in curves])
        else:
            figure = style.make_figure(width, 3.6 if many else 2.6)
            axes = below = figure.add_subplot()
        dodge = 1.0 if len(curves) <= _FEW else _dodge(sparsities_of(frame), len(curves))
        for number, (method, points) in enumerate(curves):
            aside = dodge ** (number - (len(curves) - 1) / 2)
            _draw_curve(axes, method, points, aside, bands=len(curves) <= _FEW)
        _label(axes, frame)
        _finish(below, sparsities_of(frame))
        # below the axes: inside, it would lie on the dense parent's band
        handles, labels = axes.get_legend_handles_labels()
        style.add_legend(figure, handles, labels, most=7 if many else 4)
    return figure


def _draw_dense(frame: "pd.DataFrame", methods: list[str]) -> "Figure":
    """Draw the accuracy of every seed of dense parents, beside it mean and standard deviation."""
    with style.styled():
        figure = style.make_figure()
        axes = figure.add_subplot()
        for place, method in enumerate(methods):
            look = style.look_of(method)
            accuracies = frame.loc[frame["method"] == method, "accuracy"].dropna().to_numpy()
            summary = summarise(accuracies)
            axes.scatter([place] * summary.n, accuracies, color=look["color"], alpha=0.5, s=9)
            std = summary.std if summary.n > 1 else 0.0
            axes.errorbar([place + _ASIDE], [summary.mean], yerr=[std], capsize=2, **look)
        axes.set_xticks(range(len(methods)), [title_of(method) for method in methods])
        axes.set_xlim(-0.5, len(methods) - 0.5)
        _label(axes, frame)
    return figure


def _label(axes: "Axes", frame: "pd.DataFrame") -> None:
    inside = frame.iloc[0].get("figure") == "figure2"
    axes.set_ylabel("accuracy on unseen images" if inside else "accuracy on the new task")
    axes.set_title(_describe(frame))


def _dodge(sparsities: list[float], curves: int) -> float:
    """Return the factor between neighbours of one sparsity, so that all stay with it."""
    ways = [(1 - here) / (1 - there) for here, there in pairwise(sparsities)]
    widest = min([_WIDEST, *(way**_SHARE for way in ways)])
    return min(_DODGE, float(widest ** (1 / (curves - 1))))


def _points(frame: "pd.DataFrame") -> Iterator[tuple[str, Points]]:
    """Yield each method with sparsity, mean and standard deviation (0 of a single seed)."""
    for method in frame["method"].unique():
        alive = frame[(frame["method"] == method) & frame["accuracy"].notna()]
        points = []
        for sparsity, part in alive.groupby("sparsity"):
            summary = summarise(part["accuracy"].to_numpy())
            points.append((float(sparsity), summary.mean, summary.std if summary.n > 1 else 0.0))
        if points:
            yield method, points


def _draw_curve(axes: "Axes", method: str, points: Points, aside: float, *, bands: bool) -> None:
    look = style.look_of(method)
    if base_of(method) == DENSE:
        _, mean, std = points[0]
        axes.axhspan(mean - std, mean + std, color=look["color"], alpha=0.12, linewidth=0)
        axes.axhline(
            mean,
            color=look["color"],
            linestyle=look["linestyle"],
            alpha=look["alpha"],
            label=title_of(method),
            zorder=1,
        )
        return
    places = [aside * (1 - sparsity) for sparsity, _, _ in points]
    means, stds = [mean for _, mean, _ in points], [std for _, _, std in points]
    if bands:
        low, high = ([m + side * s for m, s in zip(means, stds, strict=True)] for side in (-1, 1))
        axes.fill_between(places, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.errorbar(
        places,
        means,
        yerr=None if bands else stds,
        capsize=2,
        elinewidth=0.8,
        label=title_of(method),
        **look,
    )


def _draw_differences(axes: "Axes", frame: "pd.DataFrame", methods: list[str]) -> None:
    """Draw the mean of AP − method over the seeds of both, with its interval."""
    others = [method for method in methods if method != _AHEAD_OF]
    axes.axhline(0.0, color=style.look_of(_AHEAD_OF)["color"], linewidth=1.0, zorder=1)
    for number, method in enumerate(others):
        aside = _DODGE ** (number - (len(others) - 1) / 2)
        pairs = [(s, interval_of(frame, _AHEAD_OF, method, s)) for s in sparsities_of(frame)]
        known = [(s, pair) for s, pair in pairs if pair is not None and pair.n >= FEWEST]
        axes.errorbar(
            [aside * (1 - sparsity) for sparsity, _ in known],
            [pair.mean for _, pair in known],
            yerr=[
                [pair.mean - pair.low for _, pair in known],
                [pair.high - pair.mean for _, pair in known],
            ],
            capsize=2,
            elinewidth=0.8,
            **style.look_of(method),
        )
    axes.set_ylabel("AP − method")


def _finish(axes: "Axes", sparsities: list[float]) -> None:
    left, right = 1.25 * (1 - sparsities[0]), 0.8 * (1 - sparsities[-1])
    axes.set_xlim(left, right)  # first: a single sparsity has no limits of its own
    axes.set_xscale("log")
    labels, last = [], float("-inf")
    for sparsity in sparsities:
        place = _share(1 - sparsity, left, right)
        labels.append(f"{sparsity:g}" if place - last >= _APART else "")
        last = place if labels[-1] else last
    axes.set_xticks([1 - s for s in sparsities], labels)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("sparsity (fraction of connections removed)")


def _share(value: float, left: float, right: float) -> float:
    """Return how far along a logarithmic axis `value` is."""
    return log(value / left) / log(right / left)


def _seeds(frame: "pd.DataFrame") -> int:
    return int(frame["seed"].nunique())


def _describe(frame: "pd.DataFrame") -> str:
    first, seeds = frame.iloc[0], _seeds(frame)
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    where = " in-domain" if first.get("figure") == "figure2" else ""
    how = ", the paper's protocol" if first.get("protocol") == "paper" else ""
    return f"{parents_of(first)}, {first['images']:,} images{where}, {count}{how}"
