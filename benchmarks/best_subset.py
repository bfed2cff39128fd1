"""Best subsets of 64 and 784 pixels: `solve` beside abess, L1, other gradients and an exact solver.

    pip install 'aprune[rivals]'
    python benchmarks/best_subset.py                 # digits and MNIST, regression and logistic
    python benchmarks/best_subset.py --data digits --ways abess L1    # some anew, the others as they are

What is to be told from the pixels is whether a digit is a 0 or a 1. All see standardised pixels, those
that never change left out, and are judged by the same objective: the weights of a choice are fitted anew
with the same ridge. Everything runs on one thread; times are those of the CPU. SCIP gets bounds on the
weights from a known solution, which helps it; noted is also when it first had something as good as
`solve`.
Writes benchmarks/results/best_subset.json.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from subsets import ALPHA, WAYS
from torch import Tensor

import aprune as ap
from aprune.estimators import logistic, squares
from aprune.estimators.base import standardise

ALL = (*WAYS, "abess", "L1", "SCIP")


@dataclass(frozen=True)
class Setup:
    """One problem: features [n, D], labels [n], the number of features, and how choices are judged."""

    x: Tensor
    y: Tensor
    number: int
    maths: ModuleType
    f: Callable[..., Tensor]
    fit: Callable[..., Tensor]
    data: tuple[Tensor, ...]
    theta: Tensor | None

    def judge(self, v: Tensor) -> float:
        return float(self.maths.refit(v, self.data, ALPHA)[1])


def prepare(data: str, kind: str, number: int) -> Setup:
    task = ap.load_task(data, classes=[0, 1])
    pixels = task.train_images.flatten(1).double().numpy()
    x, _, _ = standardise(pixels[:, pixels.std(0) > 0])
    y = task.train_labels.double()
    if kind == "logistic":
        return Setup(x, y, number, logistic, *logistic.problem(x, y, ALPHA, number))
    y = y - y.mean()
    return Setup(x, y, number, squares, *squares.problem(x, y[:, None], ALPHA, number))


def by_solve(setup: Setup, seed: int, **way: Any) -> Tensor:
    steps = way["scheme"].steps
    (found,) = ap.solve(
        setup.f,
        setup.x.shape[1],
        data=[tensor[None] for tensor in setup.data],
        theta=setup.theta,
        fit=setup.fit,
        exactly=setup.number,
        moments=range(round(0.7 * steps), steps + 1),
        seed=seed,
        progress=False,
        **way,
    )
    return found.v


def by_abess(setup: Setup) -> Tensor:
    """Return the best of four: with and without the ridge, and each also along a path of sizes."""
    import abess

    kind = abess.LinearRegression if setup.maths is squares else abess.LogisticRegression
    labels = setup.y.numpy() if setup.maths is squares else setup.y.numpy().astype(int)
    choices = []
    for sizes, alpha in itertools.product((setup.number, range(1, setup.number + 1)), (0.0, ALPHA)):
        # a price next to nothing, so that the largest size of a path is taken
        free = {"ic_type": "aic", "ic_coef": 1e-9} if isinstance(sizes, range) else {}
        model = kind(support_size=sizes, alpha=alpha, max_iter=100, thread=1, **free)
        choices.append(torch.from_numpy(model.fit(setup.x.numpy(), labels).coef_.ravel() != 0))
    return min(choices, key=setup.judge)


def by_l1(setup: Setup) -> Tensor:
    """Return the first choice along the path of L1 that has the number asked for, or just fewer."""
    from sklearn.linear_model import LogisticRegression, lasso_path

    x, y = setup.x.numpy(), setup.y.numpy()
    if setup.maths is squares:
        _, paths, _ = lasso_path(x, y, n_alphas=200, eps=1e-4)
        choices = list(paths.T != 0)
    else:
        largest = np.abs(x.T @ (y - y.mean())).max()
        model = LogisticRegression(
            l1_ratio=1.0, solver="liblinear", C=1.0, tol=1e-3, max_iter=200, warm_start=True
        )
        choices = []
        for strength in np.geomspace(1.02, 1e3, 40) / largest:
            choices.append(model.set_params(C=strength).fit(x, y).coef_.ravel() != 0)
            if choices[-1].sum() > setup.number:
                break
    fitting = [choice for choice in choices if choice.sum() <= setup.number]
    return torch.from_numpy(max(fitting, key=lambda choice: int(choice.sum())))


def by_scip(setup: Setup, goal: float, known: Tensor, limit: float) -> dict[str, Any]:
    """Solve the regression as a mixed-integer problem; note when it is first as good as `goal`."""
    from pyscipopt import SCIP_EVENTTYPE, Eventhdlr, Model, quicksum

    a, b, c = setup.data
    size, (theta, _) = len(a), squares.refit(known, setup.data, ALPHA)
    bound = 2 * float(theta.abs().max())
    root = torch.linalg.cholesky(a + ALPHA * torch.eye(size).double())
    offset = torch.linalg.solve(root, b[:, 0])  # ‖Lᵀu − o‖² is the loss but for a constant
    constant = float(c - offset.square().sum())
    model = Model()
    model.hideOutput()
    model.setParam("timing/clocktype", 1)  # of the CPU
    model.setParam("limits/time", limit)
    model.setParam("parallel/maxnthreads", 1)
    u = [model.addVar(lb=-bound, ub=bound) for _ in range(size)]
    v = [model.addVar(vtype="B") for _ in range(size)]
    r = [model.addVar(lb=None, ub=None) for _ in range(size)]
    loss = model.addVar(lb=0.0)
    for j in range(size):
        model.addCons(u[j] <= bound * v[j])
        model.addCons(u[j] >= -bound * v[j])
        model.addCons(
            r[j] == quicksum(float(root[i, j]) * u[i] for i in range(j, size)) - float(offset[j])
        )
    model.addCons(quicksum(v) <= setup.number)
    model.addCons(quicksum(one * one for one in r) <= loss)
    model.setObjective(loss)
    seen: list[tuple[float, float]] = []

    class Watch(Eventhdlr):  # type: ignore[misc]
        def eventinit(self) -> None:
            self.model.catchEvent(SCIP_EVENTTYPE.BESTSOLFOUND, self)

        def eventexec(self, _: object) -> None:
            value = (self.model.getSolObjVal(self.model.getBestSol()) + constant) / 2
            seen.append((time.process_time() - start, value))

    model.includeEventhdlr(Watch(), "watch", "notes every better solution")
    start = time.process_time()
    model.optimize()
    whole = time.process_time() - start
    chosen = torch.tensor([model.getVal(one) > 0.5 for one in v])
    there = [moment for moment, value in seen if value <= goal * (1 + 1e-6)]
    return {
        "objective": setup.judge(chosen),
        "seconds": whole,
        "seconds_to_solve": there[0] if there else None,
        "lower_bound": (model.getDualbound() + constant) / 2,
        "status": model.getStatus(),
    }


def run(setup: Setup, ways: list[str], seeds: int, limit: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any], choose: Callable[[], Tensor]) -> None:
        start = time.process_time()
        v = choose()
        seconds = time.process_time() - start
        rows.append({**row, "objective": setup.judge(v), "seconds": seconds, "v": v})
        print(f"  {row} {rows[-1]['objective']:.6f} {seconds:.2f} s", flush=True)

    for (way, settings), rounds in itertools.product(WAYS.items(), (0, 50)):
        for seed in range(seeds) if way in ways else ():
            row = {"way": way, "exchanges": rounds > 0, "seed": seed}
            add(row, partial(by_solve, setup, seed, rounds=rounds, **settings))
    for way, choose in (("abess", by_abess), ("L1", by_l1)):
        if way in ways:
            add({"way": way}, partial(choose, setup))
    if "SCIP" in ways and setup.maths is squares and setup.x.shape[1] < 100:
        ours = [row for row in rows if row["way"] == "two temperatures" and row["exchanges"]]
        goal = max(row["objective"] for row in ours)
        known = min(rows, key=lambda row: row["objective"])["v"]
        rows.append({"way": "SCIP", **by_scip(setup, goal, known, limit)})
        print(f"  {rows[-1]}", flush=True)
    return [{key: row[key] for key in row if key != "v"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=("digits", "mnist"), action="append")
    parser.add_argument("--kind", choices=("regression", "logistic"), action="append")
    parser.add_argument("--numbers", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--ways", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for SCIP")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/best_subset.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
    for data in asked.data or ("digits", "mnist"):
        for kind in asked.kind or ("regression", "logistic"):
            for number in asked.numbers:
                here = {"data": data, "kind": kind, "number": number}
                print(f"{data}, {kind}, {number} features", flush=True)
                got = run(prepare(data, kind, number), asked.ways, asked.seeds, asked.limit)
                rows = [
                    row
                    for row in rows
                    if not here.items() <= row.items() or row["way"] not in asked.ways
                ] + [{**here, **row} for row in got]
                same = [row for row in rows if here.items() <= row.items()]
                best = min(row["objective"] for row in same)
                for row in same:
                    row["gap"] = row["objective"] / best - 1
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
