"""The rows of a comparison as a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aprune.experiments.plan import DENSE
from aprune.maths.statistics import Interval, paired_interval, summarise

if TYPE_CHECKING:
    import pandas as pd

TITLES = {"ap": "AP", "imp": "IMP", "erk": "ERK", "snip": "SNIP", "grasp": "GraSP"}
TITLES |= {"synflow": "SynFlow", "edge_popup": "edge-popup", "set": "SET", "rigl": "RigL"}
_VARIANTS = {"he": "He", "he_density": "He by density", "he_fan_in": "He by inputs"}
_VARIANTS |= {"fine_tuned": "fine-tuned"}
_AND = ", "  # between a method and its variant
RESHUFFLED = ", reshuffled"
"""Ends the name of a method whose connections were moved within their layers."""

_AHEAD = "AP − method"

FEWEST = 5
"""Seeds below which no interval is shown: resampling two or three numbers pretends to know."""


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, ready for a terminal or for markdown."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tabulate(frame: "pd.DataFrame") -> Table:
    """Summarise the rows of `compare`: a line for each sparsity and method.

    Accuracy is mean ± standard deviation over the seeds that did not diverge. The difference to AP is
    taken seed by seed, with a 95 % interval if there are enough of them; where there is none, there is
    no column for it.

    Args:
        frame: What `compare` returned.

    Returns:
        Header and lines; the dense parent appears once a sparsity, for the difference to AP.
    """
    frame, lines = name_arms(frame), []
    # a column only where methods were free to choose
    mixes = "mixup" in frame and frame["mixup"].nunique() > 1
    chosen = {"lr": "learning rate"} if "lr" in frame else {}
    chosen |= {"mixup": "mixup"} if mixes else {}
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
                    *(_list(part[column]) for column in chosen),
                    _describe_interval(difference),
                )
            )
    header = ("sparsity", "method", "accuracy", "seeds", *chosen.values(), _AHEAD)
    last = len(header) if any(line[-1] for line in lines) else -1
    return Table(header[:last], tuple(line[:last] for line in lines))


def name_arms(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Give rows of a variant a method of their own, as `ap, reshuffled`."""
    method = frame["method"]
    variant = frame["variant"].fillna("") if "variant" in frame else method.str[:0]
    if "reshuffled" in frame:  # all that rows say that are older than other variants
        moved = frame["reshuffled"].astype(bool) & (variant == "")
        variant = variant.where(~moved, RESHUFFLED.removeprefix(_AND))
    as_it_is = (variant == "") | method.str.contains(_AND)
    return frame.assign(method=method.where(as_it_is, method + _AND + variant))


def base_of(method: str) -> str:
    """Return the method that a variant is one of.

    Example:
        >>> base_of("ap, reshuffled")
        'ap'
    """
    return method.partition(_AND)[0]


def title_of(method: str) -> str:
    """Return the name of a method as it is printed.

    Example:
        >>> title_of("ap, he_fan_in")
        'AP, He by inputs'
    """
    base, joint, variant = method.partition(_AND)
    return TITLES.get(base, base) + joint + _VARIANTS.get(variant, variant)


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
    ahead = (
        f"; {_AHEAD} is the mean of the differences seed by seed, with its 95 % interval from {FEWEST}"
        " seeds on"
    )
    lines = [
        f"Parent {parents_of(first)}, {first['images']:,} training images. Accuracy on the test images"
        " of the new task, mean ± standard deviation over seeds"
        f"{ahead if _AHEAD in table.header else ''}.",
        "",
        _join(table.header),
        _join(["---"] * len(table.header)),
        *(_join(row) for row in table.rows),
    ]
    if diverged := _count_diverged(frame):
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
    pruned = frame.loc[frame["method"].map(base_of) != DENSE, "sparsity"]
    return sorted((pruned if len(pruned) else frame["sparsity"]).unique().tolist())


def parents_of(row: "pd.Series[Any]") -> str:
    """Return the parent of a row, and the one that it was carried onto."""
    onto = row.get("onto")
    return f"{row['parent']} → {onto}" if onto else str(row["parent"])


def _runs(frame: "pd.DataFrame", method: str, sparsity: float) -> "pd.DataFrame":
    of_method, dense = frame["method"] == method, base_of(method) == DENSE
    return frame[of_method if dense else of_method & (frame["sparsity"] == sparsity)]


def _describe_accuracy(part: "pd.DataFrame") -> str:
    alive = part["accuracy"].dropna()
    return str(summarise(alive.to_numpy())) if len(alive) else "diverged"


def _describe_count(part: "pd.DataFrame") -> str:
    diverged = _count_diverged(part)
    return f"{len(part) - diverged}" + (f" ({diverged} diverged)" if diverged else "")


def _count_diverged(frame: "pd.DataFrame") -> int:
    return int(frame["accuracy"].isna().sum())  # whatever else rows of others have


def _describe_interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval:+.3f}" if interval.n >= FEWEST else f"{interval.mean:+.3f}"


def _join(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"
