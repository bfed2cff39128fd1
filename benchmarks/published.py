"""Do methods that prune before training reach what is published? CIFAR-10, VGG16 with one linear layer.

Tanaka et al. 2020 give, after 160 epochs, the mean of three seeds (in per cent). As in their code each
method scores fresh weights, SNIP and GraSP by ten images a class and without norms having an effect, and
these weights are then trained under the mask. Runs are kept in a store: an interrupted one goes on from
its last state.

    python benchmarks/published.py --out published
"""

import argparse
import json
from pathlib import Path

import aprune as ap
from aprune.errors import SettingError
from aprune.experiments.launch import Here
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.store import Store
from aprune.files import writing
from aprune.progress import Clock, bar
from aprune.training import choose_device

# 90 and 99 % sparsity
PUBLISHED = {
    "dense": (93.5, 93.5),
    "random": (91.15, 79.14),
    "magnitude at the start": (93.12, 89.80),
    "SNIP": (92.26, 89.15),
    "GraSP": (91.84, 87.49),
    "SynFlow": (93.26, 90.08),
}
METHODS = {
    "random": ap.Random(spread="global"),
    "magnitude at the start": ap.Magnitude(when="start"),
    "SNIP": ap.SNIP(norms="running"),
    "GraSP": ap.GraSP(norms="running"),
    "SynFlow": ap.SynFlow(),
}
SPARSITIES = (0.9, 0.99)
BATCH = 128
SCORED = 10  # images a class


def drop_twice(step: int, steps: int) -> float:
    """After 60 and 120 of 160 epochs the rate falls to a tenth."""
    return 0.1 ** sum(step >= steps * epoch // 160 for epoch in (60, 120))


def plan(
    parent: str, task: ap.Task, epochs: float, seed: int
) -> dict[tuple[str, float], TransferRun]:
    """Return the retraining of each method and sparsity; each sparsity is searched for by itself."""
    recipe = ap.Recipe(
        steps=max(1, round(epochs * len(task.train_labels) / BATCH)),
        batch=BATCH,
        lr=0.1,
        schedule=drop_twice,
        nesterov=True,
        weight_decay=1e-4,
        clip=None,
    )
    scoring = ap.Recipe(steps=1, lr=0.1, batch=SCORED * task.num_classes)
    runs = {("dense", 0.0): TransferRun(parent, None, 0.0, task, recipe, seed, init="he")}
    for name, method in METHODS.items():
        for sparsity in SPARSITIES:
            search = SearchRun(parent, method, task, scoring, (sparsity,), seed)
            run = TransferRun(parent, search, sparsity, task, recipe, seed, start="rewound")
            runs[name, sparsity] = run
    return runs


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    store, clock, here = Store(ask.out), Clock(ask.time_limit), Here(device)
    task = ap.load_task(ask.task).to(device)
    seeds = [plan(ask.parent, task, ask.epochs, seed) for seed in range(ask.seeds)]
    runs = [run for of_one in seeds for run in of_one.values()]
    searches = [run.search for run in runs if run.search is not None]
    done: dict[TransferRun, dict[str, object]] = {}
    with bar("published", len(searches) + len(runs)) as advance:
        for _ in here.search_all(searches, store, clock):
            advance(1)
        for run, result in here.retrain_all(runs, store, clock):
            done[run] = result
            advance(1)
    rows = [
        {
            "method": method,
            "sparsity": sparsity,
            "seed": seed,
            "epochs": ask.epochs,
            "failed": done[run]["failed"],
            "accuracy": done[run]["accuracy"],
        }
        for seed, of_one in enumerate(seeds)
        for (method, sparsity), run in of_one.items()
        if run in done
    ]
    with writing(ask.out / "published.json") as temporary:
        temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print_table(rows)
    if len(rows) < len(runs):
        print(f"{len(runs) - len(rows)} runs are left: the same command does them")


def print_table(rows: list[dict[str, object]]) -> None:
    print("| method | sparsity | published, mean of 3 | here | seeds | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for method, numbers in PUBLISHED.items():
        for sparsity, published in zip(SPARSITIES, numbers, strict=True):
            wanted = 0.0 if method == "dense" else sparsity
            found = [r for r in rows if (r["method"], r["sparsity"]) == (method, wanted)]
            failed = sum(row["accuracy"] is None for row in found)
            here = [100 * float(str(r["accuracy"])) for r in found if r["accuracy"] is not None]
            line = f"| {method} | {wanted:g} | {published:.2f}"
            if here:
                mean = sum(here) / len(here)
                print(f"{line} | {mean:.2f} | {len(here)} | {mean - published:+.2f} |")
            if failed:
                print(f"{line} | diverged | {failed} | |")
            if method == "dense":
                break


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="cifar_vgg16")
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--epochs", type=float, default=160)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--time-limit", type=float, help="seconds; run it again for the rest")
    parser.add_argument("--out", type=Path, default=Path("published"), help="the store")
    asked = parser.parse_args()
    if asked.seeds < 1 or not asked.epochs > 0:
        raise SettingError("expected one seed or more, and epochs above 0")
    return asked


if __name__ == "__main__":
    main()
