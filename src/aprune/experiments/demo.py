"""The whole story in under a minute: find on five digits, carry over to the other five, compare.

The setting was chosen on seeds 100 … 105, judged on training images of the digits 5 … 9 that those
seeds leave unused; the demo shows other seeds, and test images that played no part in the choice.
One learning rate serves all: of 0.1 and 0.3 the smaller was better or as good for AP, IMP and random
connections; the dense parent had no part in that choice, and came in later. IMP gets as many training
steps as AP, in two rounds: 2, 3 and 5 were alike within their spread, 1 and 10 worse.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.experiments.report import (
    FEWEST,
    Table,
    interval_of,
    sparsities_of,
    tabulate,
    title_of,
)
from aprune.maths.statistics import Interval
from aprune.methods import IMP
from aprune.training.device import one_thread

if TYPE_CHECKING:
    import pandas as pd

SETTING = Comparison(
    parent="mlp",
    search_task=TaskChoice("digits", classes=(0, 1, 2, 3, 4)),
    new_task=TaskChoice("digits", classes=(5, 6, 7, 8, 9), images=50),
    methods=("ap", "random", "imp", "dense"),
    sparsities=(0.9, 0.95, 0.98, 0.99),
    seeds=(0, 1, 2, 3, 4, 5),
    settings=(IMP(rounds=2, steps=250),),
    search_steps=500,
    retrain_steps=200,
    lrs=(0.1,),
    figure="demo",
)

HEADLINE = 0.98
"""The sparsity that the sentence at the end is about."""


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo found and where it wrote it.

    Attributes:
        frame: The rows of the comparison.
        table: Means and differences, ready to print.
        sentence: What is seen, in one sentence.
        png: The figure as PNG.
        pdf: The figure as PDF.
    """

    frame: "pd.DataFrame"
    table: Table
    sentence: str
    png: Path
    pdf: Path


def demo(
    out: Path | str,
    *,
    progress: bool | None = None,
    setting: Comparison = SETTING,
    fresh: bool = False,
) -> Demo:
    """Run the demo on the CPU.

    Args:
        out: Folder for rows, table and figure; what it already holds of the demo is not done again.
        progress: Whether to show a bar; None shows it on a terminal.
        setting: What to compare.
        fresh: Whether to do again what is there.

    Returns:
        Numbers, table, sentence and figure.
    """
    with one_thread():
        frame = compare(setting, out, device="cpu", progress=progress, fresh=fresh)
    png, pdf = (Path(out) / f"comparison.{suffix}" for suffix in ("png", "pdf"))
    return Demo(frame, tabulate(frame), judge(frame), png, pdf)


def judge(frame: "pd.DataFrame", sparsity: float = HEADLINE) -> str:
    """Say in one sentence how AP compares with the other methods, whatever the numbers are.

    A difference counts as clear if its 95 % interval leaves out zero.

    Args:
        frame: The rows of a comparison with AP and at least one other method.
        sparsity: Which one the sentence is about first; the nearest that there is.

    Returns:
        The sentence.
    """
    sparsities = sparsities_of(frame)
    nearest = min(sparsities, key=lambda s: abs(s - sparsity))
    others = [method for method in frame["method"].unique() if method != "ap"]
    clauses = [_compare_at(frame, other, nearest) for other in others]
    sentence = (
        f"At sparsity {nearest:g} AP's architectures reach {_mean(frame, 'ap', nearest)}: "
        f"{', and '.join(clauses)}"
    )
    elsewhere = [_compare_elsewhere(frame, other, nearest) for other in others]
    return "; ".join([sentence, *filter(None, elsewhere)]) + "."


def _compare_at(frame: "pd.DataFrame", other: str, sparsity: float) -> str:
    interval = interval_of(frame, "ap", other, sparsity)
    name = f"{title_of(other)} ({_mean(frame, other, sparsity)}"
    if interval is None:
        return f"not comparable with {name})"
    if interval.n < FEWEST:
        return f"{interval.mean:+.3f} against {name}; seeds: {interval.n}, too few to tell)"
    verdict = {1: "better than", -1: "worse than", 0: "not clearly different from"}[_sign(interval)]
    return (
        f"{verdict} {name}; difference {interval.mean:.3f}, 95 % interval {interval.low:.3f} to"
        f" {interval.high:.3f}, {interval.n} seeds)"
    )


def _compare_elsewhere(frame: "pd.DataFrame", other: str, nearest: float) -> str:
    """Say where else AP is clearly better or worse than another method, and where it is not."""
    verdicts: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for sparsity in sparsities_of(frame):
        interval = interval_of(frame, "ap", other, sparsity)
        if sparsity != nearest and interval is not None and interval.n >= FEWEST:
            verdicts[_sign(interval)].append(f"{sparsity:g}")
    words = {1: "better", -1: "worse", 0: "neither"}
    parts = [f"{words[s]} at {' and '.join(found)}" for s, found in verdicts.items() if found]
    return f"against {title_of(other)} AP is {', '.join(parts)}" if parts else ""


def _sign(interval: Interval) -> int:
    return (interval.low > 0) - (interval.high < 0)


def _mean(frame: "pd.DataFrame", method: str, sparsity: float) -> str:
    of_method = frame[frame["method"] == method]
    rows = of_method if method == "dense" else of_method[of_method["sparsity"] == sparsity]
    alive = rows["accuracy"].dropna()
    return f"{alive.mean():.3f}" if len(alive) else "no accuracy, as all diverged"
