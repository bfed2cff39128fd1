"""The paper's claims, judged from the rows of its experiments.

A claim is made of parts. It holds if every part does, it does not hold if one part is reversed, and
it is undecided otherwise. What was not measured leaves its part undecided.

Most parts are about a difference of two methods in one figure. It is taken between runs of the same
seed and sparsity, averaged over the sparsities that both methods have, so that each seed gives one
number; `paired_interval` over the seeds gives mean and 95 % interval. A pair in which a run diverged
is left out and counted, which spares the method that diverged. Below `FEWEST` seeds such a part is
always undecided.

- A is better than B: the interval of A − B is above 0; reversed if it is below 0.
- A is about as good as B: the interval is within ±`MARGIN`; reversed if it is outside.
- A costs little: the interval is below `LITTLE`; reversed if it is above.
- Everything is poor: the highest mean accuracy over seeds, of any method at any sparsity, is below
  `POOR`; reversed if it is not. Here no interval is asked for, but `FEWEST` seeds. All three pruned
  methods must be there for a yes; the dense parent counts if it is.

1. Figure 1: t_s = t_l/100 ends below t_s = t_l, gets to where that ends sooner, and t_l/1000 prunes
   everything, on every seed.
2. Figure 2, in-domain: IMP is better than AP, and than random.
3. Figures 4 and 5: AP is better than random, random is better than IMP, in both.
4. Figure 3: random is about as good as AP. Figures 6 and 7: everything is poor.
5. Figure 5: AP is little better than AP reshuffled, which is better than IMP reshuffled.

Rows belong to a claim by their figure. The number of images is only printed, as a run at a smaller
scale has other numbers than the paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aprune.errors import SettingError
from aprune.experiments.figure1 import EXACT, WARM, WARMEST
from aprune.experiments.report import FEWEST, RESHUFFLED, name_arms, title_of
from aprune.maths.statistics import Interval, paired_interval, summarise

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.02
"""Accuracies that differ by less are about as good."""

LITTLE = 0.05
"""A loss of accuracy below this is little."""

POOR = 0.5
"""Accuracy below this is poor: less than half right, of ten classes."""

_PRUNED, _DENSE = ("ap", "random", "imp"), "dense"
_NOT_MEASURED = "not measured"

Answer = Literal["holds", "does not hold", "undecided"]
Rule = Callable[[Interval], bool | None]


@dataclass(frozen=True)
class Verdict:
    """What the rows say about one claim.

    Attributes:
        number: Of the claim, 1 to 5.
        claim: The claim in a sentence.
        verdict: Whether it holds.
        evidence: Lines with the numbers behind it; `not measured` alone if there are none.
    """

    number: int
    claim: str
    verdict: Answer
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """One condition of a claim: yes, no or undecided, and why."""

    answer: bool | None
    line: str
    measured: bool = True


def judge(frame: "pd.DataFrame") -> list[Verdict]:
    """Judge the claims 2 to 5 from the rows of one parent and one protocol.

    Args:
        frame: A row a retraining, with the columns figure (`figure2` … `figure7`), parent, protocol,
            method, reshuffled, sparsity, images, seed and accuracy, which is nan if it diverged. Some
            figures may be missing or incomplete.

    Returns:
        A verdict for each claim, in their order.

    Raises:
        SettingError: If parents or protocols are mixed, or a run is there twice.

    Example:
        >>> import pandas as pd
        >>> run = {"figure": "figure2", "parent": "mlp", "protocol": "fair", "reshuffled": False}
        >>> run |= {"sparsity": 0.9, "images": 5000}
        >>> accuracy = {"imp": 0.9, "ap": 0.8, "random": 0.7}
        >>> rows = [
        ...     run | {"method": method, "seed": seed, "accuracy": accuracy[method]}
        ...     for method in accuracy
        ...     for seed in range(5)
        ... ]
        >>> verdicts = judge(pd.DataFrame(rows))
        >>> [verdict.verdict for verdict in verdicts]
        ['holds', 'undecided', 'undecided', 'undecided']
        >>> print(verdicts[0].evidence[0])
        figure 2 (5,000 images), IMP − AP > 0: yes, +0.100 [+0.100, +0.100] over 5 seeds, 1 sparsity
        >>> verdicts[1].evidence
        ('not measured',)
    """
    frame = check_rows(frame)
    ap, random, imp = _PRUNED
    return [
        _conclude(
            2,
            "On the task it was searched on, with 5,000 images, IMP is better than AP and than random.",
            [_better(frame, "figure2", imp, ap), _better(frame, "figure2", imp, random)],
        ),
        _conclude(
            3,
            "On a new task with 1,000 and with 500 images, AP is better than random, and random is"
            " better than IMP.",
            [
                _better(frame, figure, *pair)
                for figure in ("figure4", "figure5")
                for pair in ((ap, random), (random, imp))
            ],
        ),
        _conclude(
            4,
            "On a new task, random is about as good as AP with 5,000 images, and every method is poor"
            " with 100 and with 50.",
            [
                _compare(frame, "figure3", ap, random, f"within ±{MARGIN:g}", _is_within),
                _all_poor(frame, "figure6"),
                _all_poor(frame, "figure7"),
            ],
        ),
        _conclude(
            5,
            "With 500 images of a new task, reshuffling AP within its layers costs little, and"
            " reshuffled IMP is worse than reshuffled AP.",
            [
                _compare(frame, "figure5", ap, ap + RESHUFFLED, f"< {LITTLE:g}", _is_little),
                _better(frame, "figure5", ap + RESHUFFLED, imp + RESHUFFLED),
            ],
        ),
    ]


def judge_convergence(frame: "pd.DataFrame") -> Verdict:
    """Judge claim 1 from the frame of `figure1`.

    Args:
        frame: With the columns t_s, seed, iteration, objective and active.
    """
    last = int(frame["iteration"].max())
    final = frame[frame["iteration"] == last].sort_values("seed")
    exact, warm = (final.loc[final["t_s"] == t_s, "objective"].to_numpy() for t_s in (EXACT, WARM))
    interval = paired_interval(warm, exact)
    lower = _decide(yes=interval.high < 0, no=interval.low > 0) if len(warm) >= FEWEST else None
    curve = frame[frame["t_s"] == WARM].groupby("iteration")["objective"].mean()
    there = curve.index[curve <= exact.mean()]
    when = f"in {there[0]:,}" if len(there) else "not"
    left = final.loc[final["t_s"] == WARMEST, "active"].to_numpy()
    emptied = _decide(yes=bool((left == 0).all()), no=bool((left > 0).all()))
    seeds = _count(len(warm), "seed")
    ends = f"{interval:+.3f}" if len(warm) >= FEWEST else f"{interval.mean:+.3f}"
    return _conclude(
        1,
        "With t_s = t_l/100 the search ends lower and gets there sooner than with the exact gradient,"
        " t_s = t_l, and with t_l/1000 it prunes everything.",
        [
            _Part(lower, f"objective of t_l/100 − t_l < 0: {_say(lower)}, {ends} over {seeds}"),
            _Part(
                len(there) > 0 and int(there[0]) < last,
                f"the mean of t_l/100 gets to where t_l ends: {when} of {last:,} iterations",
            ),
            _Part(
                emptied,
                f"t_l/1000 prunes everything: on {int((left == 0).sum())} of {seeds}",
            ),
        ],
    )


def check_rows(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows with reshuffled methods named.

    Raises:
        SettingError: If parents or protocols are mixed, or a run is there twice.
    """
    if frame.empty:
        return frame
    for column in ("parent", "protocol"):
        values = sorted(map(str, frame[column].unique()))
        if len(values) > 1:
            raise SettingError(
                f"got rows with {len(values)} values of {column} ({', '.join(values)}); expected one:"
                " judge each on its own"
            )
    frame = name_arms(frame.assign(reshuffled=frame["reshuffled"].astype(bool)))
    key = ["figure", "method", "sparsity", "seed"]
    twice = frame[frame.duplicated(key)]
    if len(twice):
        figure, method, sparsity, seed = twice.iloc[0][key]
        raise SettingError(
            f"got {method} in {figure} at sparsity {sparsity:g} with seed {seed} more than once;"
            " expected each run once: leave out the others"
        )
    return frame


def _conclude(number: int, claim: str, parts: Sequence[_Part]) -> Verdict:
    answers = [part.answer for part in parts]
    verdict: Answer = "undecided"
    if False in answers:
        verdict = "does not hold"
    elif all(answers):
        verdict = "holds"
    measured = any(part.measured for part in parts)
    evidence = tuple(part.line for part in parts) if measured else (_NOT_MEASURED,)
    return Verdict(number, claim, verdict, evidence)


def _better(frame: "pd.DataFrame", figure: str, method: str, other: str) -> _Part:
    return _compare(frame, figure, method, other, "> 0", _is_above)


def _compare(
    frame: "pd.DataFrame", figure: str, method: str, other: str, wanted: str, rule: Rule
) -> _Part:
    """Apply a rule to the difference of two methods."""
    what = f"{_name(frame, figure)}, {_bracket(method)} − {_bracket(other)} {wanted}"
    key = ["sparsity", "seed"]
    a, b = (rows_of(frame, figure, name) for name in (method, other))
    if a.empty or b.empty:
        return _Part(None, f"{what}: {_NOT_MEASURED}", measured=False)
    pairs = a[[*key, "accuracy"]].merge(b[[*key, "accuracy"]], on=key, suffixes=("_a", "_b"))
    if pairs.empty:
        return _Part(None, f"{what}: {_NOT_MEASURED} at the same sparsity and seed", measured=False)
    alive = pairs.dropna()
    both = [set(a[column]) & set(b[column]) for column in key]
    left_out = _count_left_out(
        diverged=len(pairs) - len(alive), missing=len(both[0]) * len(both[1]) - len(pairs)
    )
    if alive.empty:
        return _Part(None, f"{what}: undecided, no pair finished{left_out}")
    means = alive.groupby("seed")[["accuracy_a", "accuracy_b"]].mean()
    interval = paired_interval(means["accuracy_a"].to_numpy(), means["accuracy_b"].to_numpy())
    over = (
        f"over {_count(interval.n, 'seed')},"
        f" {_count(alive['sparsity'].nunique(), 'sparsity', 'sparsities')}{left_out}"
    )
    if interval.n < FEWEST:
        few = f"{what}: undecided below {FEWEST} seeds"
        return _Part(None, f"{few}, {interval.mean:+.3f} {over}")
    answer = rule(interval)
    return _Part(answer, f"{what}: {_say(answer)}, {interval:+.3f} {over}")


def _all_poor(frame: "pd.DataFrame", figure: str) -> _Part:
    """Tell whether the best mean accuracy of all methods is below `POOR`."""
    what = f"{_name(frame, figure)}, best mean accuracy < {POOR:g}"
    runs = rows_of(frame, figure, *_PRUNED, _DENSE)
    if runs.empty:
        return _Part(None, f"{what}: {_NOT_MEASURED}", measured=False)
    alive = runs.dropna(subset="accuracy")
    left_out = _count_left_out(diverged=len(runs) - len(alive), of="run")
    if alive.empty:
        return _Part(None, f"{what}: undecided, no run finished{left_out}")
    means = alive.groupby(["method", "sparsity"], as_index=False)["accuracy"].mean()
    top = means.loc[means["accuracy"].idxmax()]
    method, sparsity = str(top["method"]), float(top["sparsity"])
    best = alive[(alive["method"] == method) & (alive["sparsity"] == sparsity)]
    summary = summarise(best["accuracy"].to_numpy())
    answer: bool | None = summary.mean < POOR
    absent = [title_of(name) for name in _PRUNED if name not in set(runs["method"])]
    few = summary.n < FEWEST
    if few or (answer and absent):
        answer = None
    without = f", {_NOT_MEASURED}: {', '.join(absent)}" if absent else ""
    where = "" if method == _DENSE else f" at sparsity {sparsity:g}"
    found = f"{title_of(method)}{where} has {summary} over {_count(summary.n, 'seed')}"
    said = f"undecided below {FEWEST} seeds" if few else _say(answer)
    return _Part(answer, f"{what}: {said}, {found}{left_out}{without}")


def _is_above(interval: Interval) -> bool | None:
    return _decide(yes=interval.low > 0, no=interval.high < 0)


def _is_within(interval: Interval) -> bool | None:
    return _decide(
        yes=interval.low > -MARGIN and interval.high < MARGIN,
        no=interval.low > MARGIN or interval.high < -MARGIN,
    )


def _is_little(interval: Interval) -> bool | None:
    return _decide(yes=interval.high < LITTLE, no=interval.low > LITTLE)


def _decide(*, yes: bool, no: bool) -> bool | None:
    return True if yes else False if no else None


def _say(answer: bool | None) -> str:
    return "undecided" if answer is None else "yes" if answer else "no"


def rows_of(frame: "pd.DataFrame", figure: str, *methods: str) -> "pd.DataFrame":
    """Return the rows of some methods in one figure."""
    if frame.empty:
        return frame
    return frame[(frame["figure"] == figure) & frame["method"].isin(methods)]


def values_of(frame: "pd.DataFrame", column: str) -> list[float]:
    """Return what is in a column, in rising order."""
    return [] if frame.empty else sorted(frame[column].unique().tolist())


def _name(frame: "pd.DataFrame", figure: str) -> str:
    """Return the figure as it is printed, with its numbers of images."""
    name = figure.replace("figure", "figure ")
    own = frame if frame.empty else frame[frame["figure"] == figure]
    images = ", ".join(f"{int(number):,}" for number in values_of(own, "images"))
    return f"{name} ({images} images)" if images else name


def _bracket(method: str) -> str:
    """Return a name that can stand in a difference."""
    name = title_of(method)
    return f"({name})" if "," in name else name


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _count_left_out(*, diverged: int, missing: int = 0, of: str = "pair") -> str:
    reasons = [
        f"{_count(number, of)} {reason}"
        for number, reason in ((diverged, "diverged"), (missing, _NOT_MEASURED))
        if number
    ]
    return f" (left out: {', '.join(reasons)})" if reasons else ""
