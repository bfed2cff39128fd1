"""Methods side by side: from the same parent, at equal sparsity, with the same care for each.

What makes it fair: every method gets the same images, the same seeds of its fresh weights, as many
connections and the same grid of learning rates, and of shares of mixed images if asked for. They are
chosen for each method and sparsity on training images that the new task leaves unused, or on a part of
its own where it leaves too few; its test images are looked at once, at the end.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aprune.experiments import cost, matrix, report, style
from aprune.experiments.accuracy import draw_accuracy
from aprune.experiments.densities import draw_densities
from aprune.experiments.launch import Here, Launcher
from aprune.experiments.plan import DENSE, Arm, Comparison, Plan, TaskChoice, Trial
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.store import Store
from aprune.files import check_writable, writing
from aprune.maths.select import keep_count
from aprune.progress import Advance, Clock, bar
from aprune.training import choose_device

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "TaskChoice", "compare"]


def compare(
    comparison: Comparison,
    out: Path | str,
    *,
    store: Store | None = None,
    device: str | torch.device = "auto",
    progress: bool | None = None,
    time_limit: float | None = None,
    fresh: bool = False,
    launcher: Launcher | None = None,
) -> "pd.DataFrame":
    """Do a comparison, or what is left of it, and write rows, a table and figures.

    They are `rows.parquet`, `table.md` and `comparison`, `tuning.parquet`, by which settings were
    chosen, and `densities.parquet`, how dense the layers are; unless it has the name of a figure, also
    drawings of these (`densities`), of who beats whom (`matrix`), and of accuracy against the steps of
    the search (`cost`).

    Every search and retraining is kept under `out` as soon as it is done and never done again, and its
    state is written while it is under way, so that the same call resumes after an interruption. Several
    processes may do the same comparison at a time: they share its runs.

    Args:
        comparison: What to do.
        out: Folder for everything.
        store: Where runs are kept, to be shared with other comparisons; None keeps them under `out`.
        device: `auto`, `cpu` or `cuda`.
        progress: Whether to show a bar; None shows it on a terminal.
        time_limit: Seconds after which nothing more is started, and nothing that would probably
            last longer; what is missing is done by the next call.
        fresh: Whether to do again what is there; a `store` says that for itself.
        launcher: Where runs are done; None does them here, on `device`.

    Returns:
        One row for each method, sparsity and seed. A retraining that diverged, or whose search died,
        has `diverged` set and no accuracy (nan). `attrs["complete"]` says whether all was done, and
        `attrs["damaged"]` which files of an earlier call were not believed, so that their runs were done
        again; `attrs["dead"]` counts networks that give one output for all images; `attrs["shared"]`
        counts classes of the first repetition's new task that its search has seen images of, unless the
        new task is in the search's own domain on purpose, with `split="test"`.

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
    store = store or Store(out, fresh=fresh)
    met_before = len(store.damaged)
    launcher = launcher or Here(choose_device(device))
    work = _Work(comparison, store, launcher, time_limit)
    with bar(comparison.figure or "comparison", work.size, show=progress) as advance:
        complete = work.do_all(advance)
    frame = pd.DataFrame(work.rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    frame.attrs["complete"] = complete
    with writing(out / "rows.parquet") as temporary:
        frame.to_parquet(temporary, index=False)
    _write_or_remove(work.tuning, out / "tuning.parquet")
    _write_or_remove(work.densities, out / "densities.parquet")
    with writing(out / "table.md") as temporary:
        temporary.write_text(report.write_table(frame), encoding="utf-8")
    if frame["accuracy"].notna().any():
        style.save(draw_accuracy(frame), out / "comparison")
        if not comparison.figure:
            _draw_more(frame, pd.DataFrame(work.densities), out)
    frame.attrs["damaged"] = [  # not for the file of rows
        str(path) for path in store.damaged[met_before:]
    ]
    frame.attrs["dead"] = work.dead
    frame.attrs["shared"] = work.plan.count_shared_classes()
    return frame


def _write_or_remove(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a table; without rows, what an earlier call left is not of this one."""
    import pandas as pd

    if not rows:
        path.unlink(missing_ok=True)
        return
    with writing(path) as temporary:
        pd.DataFrame(rows).to_parquet(temporary, index=False)


def _draw_more(frame: "pd.DataFrame", densities: "pd.DataFrame", out: Path) -> None:
    style.save(cost.draw_cost(frame), out / "cost")
    if len(matrix.methods_of(frame)) > 1:
        style.save(matrix.draw_matrix(frame), out / "matrix")
        with writing(out / "matrix.md") as temporary:
            temporary.write_text(matrix.write_matrix(frame), encoding="utf-8")
    if len(densities):
        style.save(draw_densities(densities), out / "densities")


_COLUMNS = {
    "figure": "str",
    "parent": "str",
    "onto": "str",
    "protocol": "str",
    "method": "str",
    "variant": "str",
    "reshuffled": "bool",
    "sparsity": "float64",
    "images": "int64",
    "seed": "int64",
    "lr": "float64",
    "mixup": "float64",
    "steps": "int64",
    "accuracy": "float64",
    "train_loss": "float64",
    "search_steps": "int64",
    "search_loss": "float64",
    "search_accuracy": "float64",
    "connections": "int64",
    "empty_layers": "int64",
    "diverged": "bool",
}


class _Work:
    """The runs of a comparison in the order of their worth, and the rows that they give."""

    def __init__(
        self, comparison: Comparison, store: Store, launcher: Launcher, limit: float | None
    ) -> None:
        self.comparison, self.store, self.launcher = comparison, store, launcher
        self.plan = Plan(comparison, launcher.device)
        self.rows: list[dict[str, Any]] = []
        self.tuning: list[dict[str, Any]] = []  # what was tried to choose settings by
        self.dead = 0  # networks that rows are of
        self._clock = Clock(limit)
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
        """Do everything, unless the time is up first: tuning, searches, then seed after seed.

        All final retrainings are given out together, so that a GPU gets as many at a time as it can.
        """
        self._advance = advance
        chosen = self._choose_trials()
        if chosen is None:
            return False
        self._search(self.comparison.seeds)
        finals = [
            (arm, self.plan.final(arm, seed, trial))
            for seed in self.comparison.seeds
            for arm, trial in chosen.items()
        ]
        self._retrain(run for _, run in finals)
        for arm, run in finals:
            if run in self._known and (run.search is None or run.search in self._known):
                self.rows.append(self._make_row(arm, run))
        return len(self._known) == self.size

    @property
    def densities(self) -> list[dict[str, Any]]:
        """Return a row for each layer of each architecture, whichever search was done first."""
        c = self.comparison
        seeds = dict.fromkeys((*c.tuning_seeds, *c.seeds))
        runs = [self.plan.search(method, seed) for seed in seeds for method in c.methods]
        return [
            {
                "figure": c.figure,
                "parent": c.parent,
                "protocol": c.protocol,
                "method": run.method.name,
                "seed": run.seed,
                "sparsity": sparsity,
                "layer": layer,
                "place": place,
                "density": density,
            }
            for run in runs
            if run in self._known
            for sparsity, layers in zip(
                run.sparsities, self._known[run].get("densities", ()), strict=False
            )
            for place, (layer, density) in enumerate(layers.items(), start=1)
        ]

    def _choose_trials(self) -> dict[Arm, Trial] | None:
        """Return the best settings of each arm; among equals those that were given first.

        None means that the time did not suffice.
        """
        c = self.comparison
        trials = self.plan.trials()
        if len(trials) == 1:
            return dict.fromkeys(c.arms(), trials[0])
        self._search(c.tuning_seeds)
        runs = {
            (arm, trial): [self.plan.tuning(arm, seed, trial) for seed in c.tuning_seeds]
            for arm in c.arms()
            for trial in trials
        }
        self._retrain(chain.from_iterable(runs.values()))
        self.tuning = [
            self._describe_tried(arm, run)
            for (arm, _), repeated in runs.items()
            for run in repeated
            if run in self._known
        ]
        if not all(run in self._known for run in chain.from_iterable(runs.values())):
            return None
        # what diverges is as bad as can be
        totals = {
            which: sum(self._known[run]["accuracy"] or 0.0 for run in repeated)
            for which, repeated in runs.items()
        }
        return {arm: max(trials, key=lambda trial: totals[arm, trial]) for arm in c.arms()}

    def _describe_tried(self, arm: Arm, run: TransferRun) -> dict[str, Any]:
        """Return a row of a run that settings are chosen by; it never saw a test image."""
        accuracy = self._known[run]["accuracy"]
        return {
            "method": arm.method,
            "variant": arm.variant,
            "sparsity": run.sparsity,
            "images": len(run.task.train_labels),
            "judged_on": len(run.task.test_labels),
            "seed": run.seed,
            "lr": run.recipe.lr,
            "mixup": run.recipe.mixup,
            "steps": run.recipe.steps,
            "accuracy": float("nan") if accuracy is None else accuracy,
        }

    def _make_row(self, arm: Arm, run: TransferRun) -> dict[str, Any]:
        result = self._known[run]
        self.dead += result.get("dead") is True
        search = self._known[run.search] if run.search is not None else {}
        connections, empty = self.plan.count_connections(run.task), 0
        if run.search is not None:
            place = run.search.sparsities.index(run.sparsity)
            connections = search["connections"][place]
            if self.comparison.onto is not None:
                connections = keep_count(self.plan.count_connections(run.task), run.sparsity)
            connections = result.get("connections", connections)
            empty = result.get("empty_layers", search["empty_layers"][place])
        return {
            "figure": self.comparison.figure,
            "parent": self.comparison.parent,
            "onto": self.comparison.onto or "",
            "protocol": self.comparison.protocol,
            "method": arm.method,
            "variant": arm.variant,
            "reshuffled": arm.variant == "reshuffled",
            "sparsity": run.sparsity,
            "images": len(run.task.train_labels),
            "seed": run.seed,
            "lr": run.recipe.lr,
            "mixup": run.recipe.mixup,
            "steps": run.recipe.steps,
            "accuracy": result["accuracy"],
            "train_loss": result["train_loss"],
            "search_steps": run.before.recipe.steps if run.before else search.get("steps", 0),
            "search_loss": search.get("loss"),
            "search_accuracy": search.get("accuracy"),
            "connections": connections,
            "empty_layers": empty,
            "diverged": result["failed"] is not None,
        }

    def _search(self, seeds: Sequence[int]) -> None:
        """Do the searches of some seeds, or look them up."""
        runs = (self.plan.search(m, seed) for seed in seeds for m in self.comparison.methods)
        wanted = [run for run in runs if run is not None and run not in self._known]
        for run, result in self.launcher.search_all(wanted, self.store, self._clock):
            self._note(run, result)
        self._check_all(wanted)

    def _retrain(self, runs: Iterable[TransferRun]) -> None:
        """Do retrainings together; those that there is no time for are only looked up."""
        wanted = [run for run in runs if run not in self._known]
        for run, result in self.launcher.retrain_all(wanted, self.store, self._clock):
            self._note(run, result)
        self._check_all(wanted)

    def _check_all(self, wanted: Sequence[SearchRun | TransferRun]) -> None:
        if not all(run in self._known for run in wanted):
            self._stop()

    def _stop(self) -> None:
        """Start nothing more: what comes later is worth less than what there was no time for."""
        self._clock = Clock(limit=0.0)

    def _note(self, run: SearchRun | TransferRun, result: dict[str, Any]) -> None:
        self._known[run] = result
        if self._advance is not None:
            self._advance(1)
