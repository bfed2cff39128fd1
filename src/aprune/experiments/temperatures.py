"""Which t_s: the end of a descent against t_s and the step size together, on four kinds of problems.

Figure 1 compares three t_s at one step size. But t_s scales the slope of w, about t_s/4 near w = 0, so
that a t_s and a step size act in part as one. Here both vary. What else differs from case to case is how
the sparsity comes about:

- *by a drift*: the paper's γ‖1 + w‖² pulls with 2γ at w = 0, whatever t_s is, while the loss pulls with
  t_s/4 times its slope to v. To first order a connection is worth its price γ if that slope is −γ or
  less. Both say the same if t_s/4 = 2: a t_s of 8, whatever t_l, γ and the step size are. With a smaller
  one the descent prunes as if the price were 8γ/t_s.
- *by the price itself*, γ·Σv, or by a number of ones, or by AP's `gamma="auto"`: then t_s scales all
  that decides between connections alike, and what is left of it is the width of the sigmoid, 1/t_s.

`CASES` says what is run. Training images only; the network is judged on some of them that it was not
trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aprune.errors import SettingError
from aprune.experiments import style
from aprune.experiments.temperature_case import CASES, DATA
from aprune.experiments.temperature_figure import draw_best, draw_steps, tune
from aprune.files import check_writable, writing
from aprune.maths.statistics import summarise
from aprune.progress import bar

if TYPE_CHECKING:
    import pandas as pd

NEAR = 1.1  # within so many times the lowest mean


@dataclass(frozen=True, eq=False)
class Temperatures:
    """What `temperatures` found and where it wrote it.

    Attributes:
        frame: One row for each case, t_l, penalty, t_s, step and seed, with objective, active and
            accuracy (of the network).
        table: One row for each case, t_l and penalty; see `tabulate`.
        steps: Paths of the heat maps, PNG and PDF.
        best: Paths of the lines, PNG and PDF.
        parquet: The frame as parquet.
    """

    frame: "pd.DataFrame"
    table: "pd.DataFrame"
    steps: tuple[Path, Path]
    best: tuple[Path, Path]
    parquet: Path


def temperatures(
    data: Sequence[str] = DATA, *, seeds: int = 5, iterations: int = 1000, out: Path | str
) -> Temperatures:
    """Run the cases and write `temperatures.parquet` and the figures `temperatures-steps` and `-best`.

    Args:
        data: Of the cases to run: `digits`, `mnist`, and `made` for random quadratic problems.
        seeds: How many runs in each cell; their seeds are 0, 1, …, the same in each.
        iterations: Steps on digits and MNIST; a network takes a third of them, a quadratic a tenth.
        out: Folder for the files; it is made if need be.

    Returns:
        The numbers and the paths.

    Example:
        >>> import tempfile
        >>> result = temperatures(["made"], seeds=1, iterations=10, out=tempfile.mkdtemp())
        >>> sorted(result.frame["case"].unique())
        ['quadratic', 'quadratic-exactly']
    """
    import pandas as pd

    unknown = [name for name in data if name not in DATA]
    if unknown or not data:
        raise SettingError(
            f"got {unknown or 'nothing'} as data: expected some of {', '.join(DATA)}"
        )
    if seeds < 1 or iterations < 1:
        raise SettingError(
            f"got {seeds} seeds and {iterations} iterations; give at least 1 of each"
        )
    out = check_writable(out)
    cells = [
        (name, case, t_l, penalty, t_s, step)
        for name, case in CASES.items()
        if case.data in data
        for t_l in case.t_l
        for penalty in case.penalties
        for t_s in case.t_s
        for step in case.steps
    ]
    rows = []
    with bar("temperatures", len(cells)) as advance:
        for name, case, t_l, penalty, t_s, step in cells:
            cell = {"t_l": t_l, "t_s": t_s, "step": step}
            price = {"penalty": penalty} if penalty else {}
            runs = case.measure(**cell, **price, seeds=range(seeds), iterations=iterations)
            about = {"case": name, **cell, "penalty": penalty}
            rows += [{**about, "seed": seed, **vars(run)} for seed, run in enumerate(runs)]
            advance(note=name)
    frame = pd.DataFrame(rows)
    parquet = out / "temperatures.parquet"
    with writing(parquet) as temporary:
        frame.to_parquet(temporary, index=False)
    steps = style.save(draw_steps(frame), out / "temperatures-steps")
    best = style.save(draw_best(frame), out / "temperatures-best")
    return Temperatures(frame, tabulate(frame), steps, best, parquet)


def tabulate(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Say which t_s is the best in each case, and how many others are about as good.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        For each case, t_l and penalty: the `t_s` and the `step` where the mean over the seeds is
        lowest, that `objective` as mean ± standard deviation, and `near`: every t_s whose best step
        gets to within 1.1 times that mean.
    """
    import pandas as pd

    rows = []
    for (case, t_l, penalty), part in frame.groupby(["case", "t_l", "penalty"], sort=False):
        tuned = tune(part)
        first = tuned["objective"].idxmin()
        step = tuned["step"].to_numpy()[tuned["objective"].to_numpy().argmin()]
        values = part[(part["t_s"] == first) & (part["step"] == step)]["objective"].to_numpy()
        near = tuned.index[tuned["objective"] <= NEAR * tuned["objective"].min()]
        rows.append(
            {
                "case": case,
                "t_l": t_l,
                "penalty": penalty,
                "t_s": first,
                "step": step,
                "objective": str(summarise(values)),
                "near": ", ".join(f"{t_s:g}" for t_s in near),
            }
        )
    return pd.DataFrame(rows)
