"""Methods side by side: from the same parent, at equal sparsity, with the same care for each.

What makes it fair: every method gets the same images, the same seeds of its fresh weights, as many
connections and the same grid of learning rates, and of shares of mixed images if asked for. They are
chosen for each method and sparsity on a held-out part of the new task's training images; its test images
are looked at once, at the end.
"""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aprune.experiments import report, style
from aprune.experiments.plan import DENSE, Comparison, Plan, TaskChoice, Trial
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.store import Store
from aprune.files import check_writable, writing
from aprune.progress import Advance, bar
from aprune.training import choose_device

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "TaskChoice", "compare"]


def compare(
    comparison: Comparison,
    out: Path | str,
    *,
    device: str | torch.device = "auto",
    progress: bool | None = None,
    time_limit: float | None = None,
) -> "pd.DataFrame":
    """Do a comparison, or what is left of it, and write `rows.parquet`, `table.md` and a figure.

    Every search and retraining is kept under `out` as soon as it is done and never done again, so
    that the same call resumes after an interruption.

    Args:
        comparison: What to do.
        out: Folder for everything.
        device: `auto`, `cpu` or `cuda`.
        progress: Whether to show a bar; None shows it on a terminal.
        time_limit: Seconds after which nothing more is started, and nothing that would probably
            last longer; what is missing is done by the next call.

    Returns:
        One row for each method, sparsity and seed. A retraining that diverged, or whose search died,
        has `diverged` set and no accuracy (nan). `attrs["complete"]` says whether all was done.

    Example:
        >>> import tempfile
        >>> digits = TaskChoice("digits", classes=(0, 1), images=20)
        >>> few = Comparison("logistic", digits, digits, ("random",), (0.5,), (0, 1), lrs=(0.1,),
        ...                  retrain_steps=5)
        >>> compare(few, tempfile.mkdtemp(), device="cpu").connections.tolist()
        [64, 64]
    """
    import pandas as pd

    out = check_writable(out)
    work = _Work(comparison, Store(out), choose_device(device), time_limit)
    with bar("comparison", work.size, show=progress) as advance:
        complete = work.do_all(advance)
    frame = pd.DataFrame(work.rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    frame.attrs["complete"] = complete
    with writing(out / "rows.parquet") as temporary:
        frame.to_parquet(temporary, index=False)
    with writing(out / "table.md") as temporary:
        temporary.write_text(report.write_table(frame), encoding="utf-8")
    if frame["accuracy"].notna().any():
        style.save(report.draw(frame), out / "comparison")
    return frame


_COLUMNS = {
    "figure": "str",
    "parent": "str",
    "protocol": "str",
    "method": "str",
    "reshuffled": "bool",
    "sparsity": "float64",
    "images": "int64",
    "seed": "int64",
    "lr": "float64",
    "mixup": "float64",
    "accuracy": "float64",
    "train_loss": "float64",
    "search_steps": "int64",
    "search_loss": "float64",
    "search_accuracy": "float64",
    "connections": "int64",
    "empty_layers": "int64",
    "diverged": "bool",
}


class _OutOfTimeError(Exception):
    """The next run would not be done in time."""


class _Work:
    """The runs of a comparison in the order of their worth, and the rows that they give."""

    def __init__(
        self, comparison: Comparison, store: Store, device: torch.device, limit: float | None
    ) -> None:
        self.comparison, self.store, self.device = comparison, store, device
        self.plan = Plan(comparison, device)
        self.rows: list[dict[str, Any]] = []
        self._end = math.inf if limit is None else time.monotonic() + limit
        self._slowest: dict[type, float] = {}
        self._known: dict[SearchRun | TransferRun, dict[str, Any]] = {}
        self._advance: Advance | None = None

    @property
    def size(self) -> int:
        """Return the number of runs."""
        c, arms = self.comparison, len(list(self.comparison.arms()))
        trials = len(self.plan.trials())
        tuning = c.tuning_seeds if trials > 1 else ()
        searches = sum(method != DENSE for method in c.methods) * len({*c.seeds, *tuning})
        return searches + arms * (len(tuning) * trials + len(c.seeds))

    def do_all(self, advance: Advance) -> bool:
        """Do everything, unless the time is up first: tuning, then seed after seed."""
        self._advance = advance
        c = self.comparison
        try:
            chosen = self._choose_trials()
            for seed in c.seeds:
                self._do_searches(seed)
                for (method, sparsity), trial in chosen.items():
                    self.rows.append(self._do_final(method, sparsity, seed, trial))
        except _OutOfTimeError:
            return False
        return True

    def _do_searches(self, seed: int) -> None:
        for method in self.comparison.methods:
            if (run := self.plan.search(method, seed)) is not None:
                self._do(run)

    def _choose_trials(self) -> dict[tuple[str, float], Trial]:
        """Return the best settings of each arm; among equals those that were given first."""
        c = self.comparison
        trials = self.plan.trials()
        if len(trials) == 1:
            return dict.fromkeys(c.arms(), trials[0])
        for seed in c.tuning_seeds:
            self._do_searches(seed)
        chosen = {}
        for method, sparsity in c.arms():
            totals = []
            for trial in trials:
                runs = [self.plan.tuning(method, sparsity, seed, trial) for seed in c.tuning_seeds]
                # what diverges is as bad as can be
                totals.append(sum(self._do(run)["accuracy"] or 0.0 for run in runs))
            chosen[method, sparsity] = trials[totals.index(max(totals))]
        return chosen

    def _do_final(self, method: str, sparsity: float, seed: int, trial: Trial) -> dict[str, Any]:
        run = self.plan.final(method, sparsity, seed, trial)
        result = self._do(run)
        search = self._do(run.search) if run.search is not None else {}
        connections, empty = self.plan.count_connections(run.task), 0
        if run.search is not None:
            place = run.search.sparsities.index(sparsity)
            connections, empty = search["connections"][place], search["empty_layers"][place]
        return {
            "figure": "",
            "parent": self.comparison.parent,
            "protocol": "fair",
            "method": method,
            "reshuffled": False,
            "sparsity": sparsity,
            "images": len(run.task.train_labels),
            "seed": seed,
            "lr": trial.lr,
            "mixup": run.recipe.mixup,
            "accuracy": result["accuracy"],
            "train_loss": result["train_loss"],
            "search_steps": search.get("steps", 0),
            "search_loss": search.get("loss"),
            "search_accuracy": search.get("accuracy"),
            "connections": connections,
            "empty_layers": empty,
            "diverged": result["failed"] is not None,
        }

    def _do(self, run: SearchRun | TransferRun) -> dict[str, Any]:
        if run not in self._known:
            result = run.look(self.store)
            if result is None:
                begin, slowest = time.monotonic(), self._slowest.get(type(run), 0.0)
                if begin + slowest >= self._end:
                    raise _OutOfTimeError
                result = run.do(self.store, self.device)
                self._slowest[type(run)] = max(slowest, time.monotonic() - begin)
            self._known[run] = result
            if self._advance is not None:
                self._advance(1)
        return self._known[run]
