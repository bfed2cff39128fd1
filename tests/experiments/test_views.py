"""What a comparison shows besides its table: who beats whom, at what cost, from which layers."""

import math
from collections.abc import Callable

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from aprune.experiments.accuracy import draw_accuracy
from aprune.experiments.cost import draw_cost
from aprune.experiments.densities import draw_densities
from aprune.experiments.matrix import draw_matrix, is_decided, methods_of, write_matrix
from aprune.experiments.report import interval_of
from aprune.methods import METHODS


def rows(seeds: int = 6, **accuracies: float) -> pd.DataFrame:
    """Return rows at one sparsity; every second seed is a little better than the others."""
    return pd.DataFrame(
        [
            {
                "parent": "mlp",
                "method": method,
                "reshuffled": False,
                "sparsity": 0.0 if method == "dense" else 0.9,
                "images": 50,
                "seed": seed,
                "accuracy": accuracy + 0.01 * (seed % 2) + 0.001 * seed * (method == "ap"),
                "search_steps": {"ap": 500, "imp": 500, "snip": 1}.get(method, 0),
                "diverged": False,
            }
            for method, accuracy in accuracies.items()
            for seed in range(seeds)
        ]
    )


def texts(figure: Figure) -> dict[str, str]:
    return {
        text.get_text(): str(text.get_fontweight())
        for axes in figure.axes
        for text in axes.texts
        if text.get_text()
    }


def test_the_best_come_first_and_those_without_accuracy_not_at_all() -> None:
    assert methods_of(rows(random=0.5, ap=0.7, imp=0.6)) == ["ap", "imp", "random"]
    assert methods_of(rows(random=0.5, imp=math.nan)) == ["random"]


def test_differences_are_those_of_row_and_column() -> None:
    frame = rows(ap=0.7, imp=0.6)
    # by hand: .1 more, and the mean of .000 to .005
    table = write_matrix(frame)
    assert table.splitlines() == [
        "Sparsity 0.9, row − column:",
        "",
        "| | AP | IMP |",
        "| --- | --- | --- |",
        "| AP |  | **+0.102** |",
        "| IMP | **-0.102** |  |",
    ]


@pytest.mark.parametrize(("seeds", "decided"), [(4, False), (6, True)])
def test_few_seeds_decide_nothing(seeds: int, decided: bool) -> None:
    frame = rows(seeds, ap=0.7, imp=0.6)
    interval = interval_of(frame, "ap", "imp", 0.9)
    assert interval is not None
    assert is_decided(interval) is decided
    assert ("**" in write_matrix(frame)) is decided
    assert set(texts(draw_matrix(frame)).values()) == {"bold" if decided else "normal"}


def test_a_difference_around_zero_is_not_decided() -> None:
    frame = rows(random=0.6, imp=0.6)
    frame.loc[frame["method"] == "imp", "accuracy"] = [0.58, 0.63, 0.61, 0.59, 0.6, 0.61]
    interval = interval_of(frame, "random", "imp", 0.9)
    assert interval is not None
    assert not is_decided(interval)
    assert "**" not in write_matrix(frame)


def test_every_pair_is_drawn_with_its_sign() -> None:
    frame = rows(ap=0.7, imp=0.6, random=0.5, dense=0.8)
    drawn = texts(draw_matrix(frame))
    assert {"+.102", "-.102", "+.202", "-.098", "+.300"} <= set(drawn)
    (axes,) = draw_matrix(frame).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "dense",
        "AP",
        "IMP",
        "random",
    ]
    assert len(axes.texts) == 12


def test_methods_of_one_cost_stand_side_by_side_in_their_order() -> None:
    (axes,) = draw_cost(rows(ap=0.7, imp=0.6, snip=0.65, random=0.5)).axes
    places = {bars.get_label(): bars[0].get_xdata()[0] for bars in axes.containers}
    ticks = {
        tick.get_text(): place
        for tick, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
    }
    assert list(ticks) == ["0", "1", "500"]  # what was taken, to the step
    assert places["random"] == ticks["0"] < places["SNIP"] == ticks["1"] < places["AP"]
    assert places["AP"] < ticks["500"] < places["IMP"] < axes.get_xlim()[1]
    assert ticks["500"] == (places["AP"] + places["IMP"]) / 2
    heights = {bars.get_label(): bars[0].get_ydata()[0] for bars in axes.containers}
    assert heights["SNIP"] == pytest.approx(0.655)


MANY = {
    "dense": 0.9,
    "dense, fine_tuned": 0.9,
    **{method: 0.5 + 0.01 * place for place, method in enumerate(METHODS)},
    **{f"{method}, reshuffled": 0.4 for method in ("ap", "imp", "snip", "grasp")},
}


def crowd(*sparsities: float) -> pd.DataFrame:
    """Return rows of many methods; those of the dense parents once."""
    frame = rows(2, **MANY)
    dense = frame["method"].str.startswith("dense")
    return pd.concat(
        [frame[dense], *(frame[~dense].assign(sparsity=sparsity) for sparsity in sparsities)],
        ignore_index=True,
    )


@pytest.mark.parametrize("draw", [draw_accuracy, draw_cost, draw_matrix])
def test_nothing_of_a_crowded_figure_is_cut_off(draw: Callable[[pd.DataFrame], Figure]) -> None:
    figure = draw(crowd(0.9, 0.95))
    figure.draw_without_rendering()
    whole = figure.bbox.padded(1.0)
    for part in [*figure.legends, *(label for axes in figure.axes for label in labels(axes))]:
        box = part.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, part
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1, part
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        for bars in axes.containers:
            assert all(low < x < high for x in bars[0].get_xdata())


def labels(axes: Axes) -> list[Text]:
    """Return the labels of the ticks that are in view."""
    return [
        tick.label1
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]


def test_points_of_one_sparsity_stay_nearer_to_it_than_to_the_next() -> None:
    (axes,) = draw_accuracy(crowd(0.9, 0.92)).axes
    left, right = zip(*(bars[0].get_xdata() for bars in axes.containers), strict=True)
    assert min(left) > (0.1 * 0.08) ** 0.5 > max(right)


def test_many_matrices_stand_in_rows() -> None:
    width, height = draw_matrix(crowd(0.5, 0.8, 0.9, 0.95)).get_size_inches()
    assert width / height < 1.5


def test_an_empty_layer_lies_on_the_lower_edge() -> None:
    frame = pd.DataFrame(
        [
            {"method": m, "seed": s, "sparsity": 0.9, "layer": str(p), "place": p, "density": d}
            for m, values in (("ap", (0.2, 0.1)), ("magnitude", (0.4, 0.0)))
            for s in (0, 1)
            for p, d in enumerate(values, start=1)
        ]
    )
    (axes,) = draw_densities(frame).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["AP"] == [0.2, 0.1]
    assert lines["magnitude"] == [0.4, axes.get_ylim()[0]]
    assert axes.get_yscale() == "log"
