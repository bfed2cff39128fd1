"""Draw what `speed.py` measured, and print it as tables for a document.

    python benchmarks/draw_speed.py

reads `benchmarks/results/h200.json` and writes `steps.png`, `growth.png` and `retraining.png` beside it.
What was not measured, or failed, is a dash in the tables.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import LogFormatterMathtext
from speed import CPU_KINDS, RETRAININGS
from timing import Row

from aprune.experiments import style
from aprune.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = dict[tuple[Any, ...], Row]
"""Rows by what they are about: one of `SECTIONS` says which fields those are."""

DENSE, SEARCH = "dense, captured", "aprune search, compiled"
AUTOGRAD = "autograd through the mask, eager"
UPDATE, STEP = "update alone", "whole step"
EAGER = "one by one, eager"


def pale(colour: str) -> str:
    return to_hex([0.55 + 0.45 * part for part in to_rgb(colour)])


GREY, BLUE = style.COLOURS["dense"], style.COLOURS["ap"]
FRONT = {"marker": "o", "linewidth": 2.2, "markersize": 4.5, "zorder": 4}
LOOKS: dict[str, Row] = {
    SEARCH: {"color": BLUE, **FRONT},
    "aprune search": {"color": pale(BLUE), **FRONT},
    DENSE: {"color": GREY, "marker": "s"},
    "dense, eager": {"color": pale(GREY), "marker": "s"},
    "torch.nn.utils.prune, eager": {"color": style.COLOURS["random"], "marker": "v"},
    AUTOGRAD: {"color": style.COLOURS["snip"], "marker": "^"},
    "edge-popup, eager": {"color": style.COLOURS["edge_popup"], "marker": "D"},
}


def main() -> None:
    ask = read_arguments()
    report = json.loads(ask.results.read_text())
    for name, (fields, print_tables, draw) in SECTIONS.items():
        cells = {tuple(row[field] for field in fields): row for row in report.get(name, [])}
        measured = {place: row for place, row in cells.items() if "failed" not in row}
        if cells:
            print(f"\n## {name}")
            print_tables(cells)
        if measured and draw:
            with style.styled(), writing(ask.results.with_name(f"{name}.png")) as temporary:
                figure = draw(measured)
                figure.savefig(temporary, format="png", dpi=200, metadata={"Software": None})


# Figures


def draw_steps(cells: Cells) -> "Figure":
    figure = style.make_figure(style.PAGE_WIDTH, 3.2)
    parents = dict.fromkeys(parent for parent, _, _ in cells)
    kinds = [what for what in LOOKS if any(what in place for place in cells)]
    batches = sorted({batch for _, batch, _ in cells})
    panels = figure.subplots(1, len(parents), sharey=True, squeeze=False)[0]
    for axes, parent in zip(panels, parents, strict=True):
        style.make_logarithmic(axes)
        for what in kinds:
            rows = [cells[place] for b in batches if (place := (parent, b, what)) in cells]
            draw_line(axes, rows, "batch", "ms", label=what, **LOOKS[what])
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_xticks([], minor=True)
        axes.set_xlim(0.8 * batches[0], 1.25 * batches[-1])
        axes.set_title(parent)
        axes.set_xlabel("batch size")
    panels[0].set_ylabel("milliseconds a step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_growth(cells: Cells) -> "Figure":
    figure = style.make_figure(height=2.6)
    axes = figure.add_subplot()
    style.make_logarithmic(axes)
    rows = [cells[place] for place in sorted(cells)]
    for what, look in {STEP: LOOKS[DENSE], UPDATE: LOOKS[SEARCH]}.items():
        some = [row for row in rows if row["what"] == what]
        draw_line(axes, some, "connections", "ns_per_connection", label=what, **look)
    bounds = [(row["connections"], bound) for row in rows if (bound := ns_to_copy(row))]
    if bounds:
        look = {"color": style.COLOURS["imp"], "label": "the update's bytes, copied", "zorder": 5}
        axes.errorbar(*zip(*bounds, strict=True), fmt="--", **look)
    axes.xaxis.set_major_formatter(LogFormatterMathtext())
    axes.set_xticks([], minor=True)
    axes.set_xlabel("connections")
    axes.set_ylabel("nanoseconds a connection")
    axes.legend()
    return figure


def draw_line(axes: "Axes", rows: Sequence[Row], x: str, y: str, **look: Any) -> None:
    """Draw medians, and bars from quartile to quartile; `y` goes with the milliseconds."""
    fields = (x, y, "ms", "ms_low", "ms_high")
    xs, ys, ms, low, high = (np.array([row[field] for row in rows]) for field in fields)
    bars = [(ms - low) * ys / ms, (high - ms) * ys / ms]
    axes.errorbar(xs, ys, yerr=bars, capsize=2, elinewidth=0.8, **look)


def draw_retraining(cells: Cells) -> "Figure":
    ways, places = ways_in(cells), places_in(cells)
    colours = [GREY if way.startswith("one by one") else BLUE for way in ways]
    for number, way in enumerate(ways):
        if way.endswith(("eager", "fused")):
            colours[number] = pale(colours[number])
    figure = style.make_figure(style.PAGE_WIDTH, 0.7 + 0.18 * len(ways))
    panels = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    for axes, place in zip(panels, places, strict=True):
        rates = [read(cells, (*place, way), "runs_per_minute") for way in ways]
        bars = axes.barh(ways, [rate or 0 for rate in rates], color=colours)
        axes.bar_label(bars, [show(rate, ".0f") for rate in rates], padding=2, fontsize=7)
        axes.grid(visible=False)
        axes.margins(x=0.12, y=0.02)
        axes.set_title("{}, {:,} steps".format(*place))
        axes.set_xlabel("retrainings a minute")
    panels[0].invert_yaxis()
    return figure


# Tables


def print_steps(cells: Cells) -> None:
    times, ratios = [], []
    for place in places_in(cells):
        ms = {what: read(cells, (*place, what), "ms") for what in LOOKS}
        memory = [read(cells, (*place, what), "peak_gib") for what in (SEARCH, DENSE)]
        images = read(cells, (*place, SEARCH), "images_per_s")
        pairs = [(ms[SEARCH], ms[DENSE]), memory, (ms[AUTOGRAD], ms[SEARCH])]
        times.append([*place, *ms.values()])
        ratios.append([*place, images, *(ratio(*pair) for pair in pairs)])
    print_table({"parent": "", "batch": ","} | {f"{what}, ms": ".2f" for what in LOOKS}, times)
    columns = {"parent": "", "batch": ",", "images a second, search": ",.0f"}
    names = ("search ÷ dense", "memory: search ÷ dense", "autograd ÷ search")
    print_table(columns | dict.fromkeys(names, ".2f"), ratios)


def print_growth(cells: Cells) -> None:
    lines = []
    for connections in sorted({place[0] for place in cells}):
        update, step = (cells.get((connections, what), {}) for what in (UPDATE, STEP))
        fields = ("ms", "ns_per_connection", "tb_per_s", "copy_tb_per_s")
        ms, ns, *speeds = (update.get(field) for field in fields)
        whole = [step.get(field) for field in fields[:2]]
        lines.append([connections, ms, ns, ns_to_copy(update), ratio(*speeds), *whole])
    columns = {"connections": ",", f"{UPDATE}, ms": ".3g", f"{UPDATE}, ns a connection": ".3g"}
    columns |= {"its bytes copied, ns a connection": ".3g", "its bandwidth ÷ a copy's": ".2f"}
    print_table(columns | {f"{STEP}, ms": ".3g", f"{STEP}, ns a connection": ".3g"}, lines)


def print_retraining(cells: Cells) -> None:
    lines = []
    for place in places_in(cells):
        eager = read(cells, (*place, EAGER), "runs_per_minute")
        for way in ways_in(cells):
            rate = read(cells, (*place, way), "runs_per_minute")
            lines.append([*place, way, rate, ratio(rate, eager)])
    columns = {"parent": "", "steps": ",", "way": "", "runs a minute": ".1f"}
    print_table(columns | {f"÷ {EAGER}": ".1f"}, lines)


def print_cpu(cells: Cells) -> None:
    lines = []
    for place in places_in(cells):
        dense, search = (read(cells, (*place, what), "ms") for what in CPU_KINDS)
        lines.append([*place, dense, search, ratio(search, dense)])
    columns = {"parent": "", "batch": ","} | {f"{what}, ms": ".3g" for what in CPU_KINDS}
    print_table(columns | {"search ÷ dense": ".2f"}, lines)


def print_table(columns: Mapping[str, str], lines: Iterable[Sequence[Any]]) -> None:
    """Print a table of columns with a name and a format, which only numbers have."""
    print(f"\n| {' | '.join(columns)} |")
    print(f"| {' | '.join('---:' if form else '---' for form in columns.values())} |")
    for line in lines:
        print(f"| {' | '.join(map(show, line, columns.values()))} |")


def show(value: Any, form: str) -> str:
    return "–" if value is None else format(value, form)


# Reading cells, of which any may be missing


def places_in(cells: Cells) -> list[tuple[str, int]]:
    """Return parents in the order of the file, each with its batches or steps from few to many."""
    parents = list(dict.fromkeys(place[0] for place in cells))
    return sorted({place[:2] for place in cells}, key=lambda it: (parents.index(it[0]), it[1]))


def ways_in(cells: Cells) -> list[str]:
    return [way for way in RETRAININGS if any(way in place for place in cells)]


def read(cells: Cells, place: tuple[Any, ...], field: str) -> float | None:
    return cells.get(place, {}).get(field)


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def ns_to_copy(update: Row) -> float | None:
    """Return how long a copy takes that moves as many bytes as the update of a connection."""
    picoseconds = ratio(update.get("bytes_per_connection"), update.get("copy_tb_per_s"))
    return None if picoseconds is None else picoseconds / 1e3


SECTIONS = {
    "steps": (("parent", "batch", "what"), print_steps, draw_steps),
    "growth": (("connections", "what"), print_growth, draw_growth),
    "retraining": (("parent", "steps", "what"), print_retraining, draw_retraining),
    "cpu": (("parent", "batch", "what"), print_cpu, None),
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/h200.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
