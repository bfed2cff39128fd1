"""What became of the paper's claims, as a page; with its table 1 and the numbers that it printed."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aprune.experiments.claims import Verdict, check_rows, rows_of, values_of
from aprune.experiments.report import FEWEST, RESHUFFLED, Table, title_of
from aprune.maths.statistics import summarise

if TYPE_CHECKING:
    import pandas as pd

PRINTED = {
    "ap": {0.1: 0.378, 0.3: 0.343, 0.5: 0.429, 0.7: 0.448, 0.9: 0.497, 0.95: 0.301, 0.99: 0.100},
    "imp": {0.1: 0.300, 0.3: 0.332, 0.5: 0.342, 0.7: 0.376, 0.9: 0.100, 0.95: 0.100, 0.99: 0.100},
}
"""Table 1 of the paper: accuracy after reshuffling by method and sparsity; vgg19, 500 images."""

_NONE = "–"


def table1(frame: "pd.DataFrame") -> Table:
    """Set the accuracies of figure 5 before and after reshuffling beside those that the paper printed.

    Args:
        frame: Rows as `judge` takes them.

    Returns:
        A line for each sparsity of AP and of IMP, mean ± standard deviation over the seeds that did not
        diverge; – where nothing was measured, or printed.

    Raises:
        SettingError: If parents or protocols are mixed, or a run is there twice.

    Example:
        >>> import pandas as pd
        >>> run = {"figure": "figure5", "parent": "vgg19", "protocol": "paper", "method": "ap"}
        >>> run |= {"reshuffled": True, "sparsity": 0.9, "images": 500, "seed": 0, "accuracy": 0.5}
        >>> table1(pd.DataFrame([run])).rows
        (('0.9', 'AP', '–', '0.500', '0.497'),)
    """
    frame = check_rows(frame)
    lines = []
    own = rows_of(frame, "figure5", *(name + end for name in PRINTED for end in ("", RESHUFFLED)))
    for sparsity in values_of(own, "sparsity"):
        at = own[own["sparsity"] == sparsity]
        for method, printed in PRINTED.items():
            cells = [_describe(rows_of(at, "figure5", method + end)) for end in ("", RESHUFFLED)]
            if cells == [_NONE, _NONE]:
                continue
            value = next((v for s, v in printed.items() if math.isclose(s, sparsity)), None)
            paper = _NONE if value is None else f"{value:.3f}"
            lines.append((f"{sparsity:g}", title_of(method), *cells, paper))
    header = ("sparsity", "method", "as found", "reshuffled", "reshuffled, in the paper")
    return Table(header, tuple(lines))


def write_page(verdicts: Sequence[Verdict], table: Table | None) -> str:
    """Return verdicts, their evidence and Table 1 as markdown.

    Args:
        verdicts: What `judge` returned.
        table: What `table1` returned; None if there is none.

    Returns:
        Markdown text.

    Example:
        >>> verdict = Verdict(2, "IMP is best.", "undecided", ("not measured",))
        >>> print(write_page([verdict], None).splitlines()[4])
        | 2 | IMP is best. | undecided |
    """
    lines = [
        "## Verdicts",
        "",
        *_format(
            ("number", "claim", "verdict"), [(str(v.number), v.claim, v.verdict) for v in verdicts]
        ),
        "",
        "A difference is the mean of the differences seed by seed, averaged over sparsities, with its"
        f" 95 % interval from {FEWEST} seeds on. With fewer it decides nothing. The claims speak of the"
        " paper's tasks; each line says how many images were really used. All seeds share the"
        " learning rate that a method chose: the intervals do not hold that choice.",
    ]
    for verdict in verdicts:
        lines += ["", f"## Claim {verdict.number}: {verdict.verdict}", "", verdict.claim, ""]
        lines += [f"- {line}" for line in verdict.evidence]
    lines += ["", "## Table 1", ""]
    if table is None or not table.rows:
        return "\n".join([*lines, "Not measured."]) + "\n"
    lines += [
        "Accuracy on the new task of figure 5, mean ± standard deviation over seeds. The paper printed"
        " its numbers for vgg19 and 500 images, after reshuffling only.",
        "",
        *_format(table.header, table.rows),
    ]
    return "\n".join(lines) + "\n"


def write_overview(pages: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the verdicts of several pages side by side, as markdown.

    Args:
        pages: Verdicts by the name of the folder that their page, `claims.md`, is in.

    Example:
        >>> verdict = Verdict(2, "IMP is best.", "undecided", ("not measured",))
        >>> print(write_overview({"mlp-fair": [verdict]}).splitlines()[4])
        | 2 | IMP is best. | undecided |
    """
    claims = {v.number: v.claim for verdicts in pages.values() for v in verdicts}
    said = {name: {v.number: str(v.verdict) for v in of_one} for name, of_one in pages.items()}
    lines = [
        (str(number), claims[number], *(said[name].get(number, _NONE) for name in pages))
        for number in sorted(claims)
    ]
    header = ("number", "claim", *(f"[{name}]({name}/claims.md)" for name in pages))
    title = "# What becomes of the paper's claims, by parent and protocol"
    return "\n".join([title, "", *_format(header, lines)]) + "\n"


def _describe(part: "pd.DataFrame") -> str:
    if part.empty:
        return _NONE
    alive = part["accuracy"].dropna()
    if alive.empty:
        return "diverged"
    diverged = len(part) - len(alive)
    return f"{summarise(alive.to_numpy())}" + (f" ({diverged} diverged)" if diverged else "")


def _format(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
