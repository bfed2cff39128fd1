"""Draw what `speed.py` measured, and print it as tables for a document.

    python benchmarks/draw_speed.py > /tmp/tables.md

reads `benchmarks/results/h200.json` and writes `steps.png`, `growth.png` and `retraining.png` beside it.
What was not measured, or failed, is – in the tables and absent from the lines.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogFormatterMathtext
from speed import CPU_KINDS, RETRAININGS
from timing import Row

from aprune.experiments import style
from aprune.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = dict[tuple[Any, ...], Row]

DENSE, SEARCH = "dense, captured", "aprune search, compiled"
AUTOGRAD = "autograd through the mask, eager"
UPDATE, STEP = "update alone", "whole step"
EAGER = "one by one, eager"
ALPHA = 0.45  # of bars and lines that have a faster kin in the same colour

# How a kind of step is drawn: as a method of `style`, in front of the others if it is aprune's.
FRONT = {"linewidth": 2.0, "markersize": 4.5, "zorder": 4}
BEHIND = {"linewidth": 1.0, "zorder": 3}
LOOKS: dict[str, tuple[str, Row]] = {
    "dense, eager": ("dense", {"marker": "s", "alpha": ALPHA, **BEHIND}),
    DENSE: ("dense", {"marker": "s", **BEHIND}),
    "aprune search": ("ap", {"marker": "o", "alpha": ALPHA, **FRONT}),
    SEARCH: ("ap", {"marker": "o", **FRONT}),
    AUTOGRAD: ("snip", {"marker": "^", **BEHIND}),
    "torch.nn.utils.prune, eager": ("random", {"marker": "v", **BEHIND}),
    "edge-popup, eager": ("edge_popup", {"marker": "D", **BEHIND}),
}


def main() -> None:
    ask = read_arguments()
    report = json.loads(ask.results.read_text())
    keys = {
        "steps": ("parent", "batch", "what"),
        "growth": ("connections", "what"),
        "retraining": ("parent", "steps", "what"),
        "cpu": ("parent", "batch", "what"),
    }
    for name, fields in keys.items():
        cells = {tuple(row[field] for field in fields): row for row in report.get(name, [])}
        if not cells:
            continue
        print(f"\n## {name}")
        TABLES[name](cells)
        if name in FIGURES:
            with style.styled():
                save(FIGURES[name](cells), ask.results.with_name(f"{name}.png"))


# Figures


def draw_steps(cells: Cells) -> "Figure":
    measured = {key: row for key, row in cells.items() if "ms" in row}
    parents = distinct(measured, 0)
    figure = style.make_figure(style.PAGE_WIDTH, 3.2)
    panels = figure.subplots(1, len(parents), sharey=True, squeeze=False)[0]
    for axes, parent in zip(panels, parents, strict=True):
        batches = sorted({batch for name, batch, _ in measured if name == parent})
        style.make_logarithmic(axes)
        for what, (method, look) in LOOKS.items():
            rows = [measured[key] for b in batches if (key := (parent, b, what)) in measured]
            draw_line(axes, rows, "batch", "ms", what, method, **look)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_xticks([], minor=True)
        axes.set_title(parent)
        axes.set_xlabel("images in a batch")
    panels[0].set_ylabel("milliseconds a step")
    lines = {name: line for axes in panels for line, name in zip(*legend_of(axes), strict=True)}
    known = [what for what in LOOKS if what in lines]
    figure.legend([lines[what] for what in known], known, loc="outside lower center", ncols=3)
    return figure


def draw_growth(cells: Cells) -> "Figure":
    figure = style.make_figure(height=2.6)
    axes = figure.add_subplot()
    style.make_logarithmic(axes)
    rows = [cells[key] for key in sorted(cells) if "ms" in cells[key]]
    update, step = ([row for row in rows if row["what"] == what] for what in (UPDATE, STEP))
    draw_line(axes, step, "connections", "ns_per_connection", STEP, "dense", marker="s")
    draw_line(axes, update, "connections", "ns_per_connection", UPDATE, "ap", **LOOKS[SEARCH][1])
    bounds = [(row["connections"], bound) for row in update if (bound := ns_to_copy(row))]
    if bounds:
        colour = style.COLOURS["imp"]
        axes.plot(*zip(*bounds, strict=True), "--", color=colour, label="copying as many bytes")
    axes.xaxis.set_major_formatter(LogFormatterMathtext())
    axes.set_xlabel("connections")
    axes.set_ylabel("nanoseconds a connection")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def draw_line(
    axes: "Axes", rows: list[Row], x: str, y: str, label: str, method: str, **look: Any
) -> None:
    """Draw medians with bars between the quartiles; `y` is in proportion to the milliseconds."""
    if not rows:
        return
    units = [row[y] / row["ms"] for row in rows]
    below = [(row["ms"] - row["ms_low"]) * u for row, u in zip(rows, units, strict=True)]
    above = [(row["ms_high"] - row["ms"]) * u for row, u in zip(rows, units, strict=True)]
    look |= {"color": style.COLOURS[method], "capsize": 2, "elinewidth": 0.8, "label": label}
    xs, ys = ([row[name] for row in rows] for name in (x, y))
    axes.errorbar(xs, ys, yerr=[below, above], **look)


def draw_retraining(cells: Cells) -> "Figure":
    measured = {key: row["runs_per_minute"] for key, row in cells.items() if "failed" not in row}
    ways = [way for way in RETRAININGS if any(key[2] == way for key in measured)]
    panels = list(dict.fromkeys(key[:2] for key in measured))
    figure = style.make_figure(style.PAGE_WIDTH, 0.7 + 0.19 * len(ways))
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (parent, steps) in zip(drawn, panels, strict=True):
        values = [measured.get((parent, steps, way)) for way in ways]
        colours = [
            style.COLOURS["dense" if way.startswith("one by one") else "ap"] for way in ways
        ]
        bars = axes.barh(ways, [value or 0 for value in values], color=colours, height=0.75)
        for bar, way in zip(bars, ways, strict=True):
            bar.set_alpha(ALPHA if way.endswith(("eager", "fused")) else 1)
        axes.bar_label(bars, [show(value, ".0f") for value in values], padding=2, fontsize=7)
        axes.margins(x=0.1, y=0.02)
        axes.grid(visible=False)
        axes.set_title(f"{parent}, {steps:,} steps")
        axes.set_xlabel("retrainings a minute")
    drawn[0].invert_yaxis()
    return figure


def save(figure: "Figure", path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200, metadata={"Software": None})


# Tables


def print_steps(cells: Cells) -> None:
    times, ratios = [], []
    for parent, batch in sorted_pairs(cells):
        of = {what: cells.get((parent, batch, what), {}) for what in LOOKS}
        search, dense = of[SEARCH], of[DENSE]
        times.append([parent, batch, *(show(of[what].get("ms"), ".2f") for what in LOOKS)])
        ratios.append(
            [
                parent,
                batch,
                show(search.get("images_per_s"), ",.0f"),
                show(ratio(search.get("ms"), dense.get("ms")), ".2f"),
                show(ratio(search.get("peak_gib"), dense.get("peak_gib")), ".2f"),
                show(ratio(of[AUTOGRAD].get("ms"), search.get("ms")), ".1f"),
            ]
        )
    print_table(["parent", "batch", *(f"{what}, ms" for what in LOOKS)], times)
    names = ["search ÷ dense", "memory: search ÷ dense", "autograd ÷ search"]
    print_table(["parent", "batch", "images a second of the search", *names], ratios)


def print_growth(cells: Cells) -> None:
    lines = []
    for connections in sorted(distinct(cells, 0)):
        update, step = (cells.get((connections, what), {}) for what in (UPDATE, STEP))
        share = ratio(update.get("tb_per_s"), update.get("copy_tb_per_s"))
        lines.append(
            [
                f"{connections:,}",
                show(update.get("ms"), ".3g"),
                show(update.get("ns_per_connection"), ".3g"),
                show(ns_to_copy(update), ".3g"),
                show(update.get("tb_per_s"), ".3g"),
                show(share, ".0%"),
                show(step.get("ms"), ".3g"),
                show(step.get("ns_per_connection"), ".3g"),
            ]
        )
    each = "ns a connection"
    update = [f"{UPDATE}, ms", each, f"copying as many bytes, {each}", "TB/s", "TB/s ÷ copy's"]
    print_table(["connections", *update, f"{STEP}, ms", each], lines)


def print_retraining(cells: Cells) -> None:
    lines = []
    for parent, steps in dict.fromkeys(key[:2] for key in cells):
        eager = cells.get((parent, steps, EAGER), {}).get("runs_per_minute")
        for way in RETRAININGS:
            rate = cells.get((parent, steps, way), {}).get("runs_per_minute")
            factor = ratio(rate, eager)
            lines.append([parent, f"{steps:,}", way, show(rate, ".1f"), show(factor, ".1f")])
    print_table(["parent", "steps", "way", "runs a minute", f"÷ {EAGER}"], lines)


def print_cpu(cells: Cells) -> None:
    lines = []
    for parent, batch in sorted_pairs(cells):
        values = [cells.get((parent, batch, what), {}).get("ms") for what in CPU_KINDS]
        times = [show(value, ".3g") for value in values]
        lines.append([parent, batch, *times, show(ratio(values[1], values[0]), ".2f")])
    print_table(["parent", "batch", *(f"{what}, ms" for what in CPU_KINDS), "ratio"], lines)


def print_table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |")


def show(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
