"""Do methods that prune before training reach what is published? CIFAR-10, VGG16 with one linear layer.

Tanaka et al. 2020 give, after 160 epochs, the mean of three seeds (in per cent). Each method chooses
connections of fresh weights; the architecture is then trained from other fresh weights, for as long and
with the same rates as theirs. What is in the file already is not done again: a run that was interrupted
goes on.

    python benchmarks/published.py
"""

import argparse
import json
from pathlib import Path

import aprune as ap
from aprune.errors import TrainingError
from aprune.files import writing

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
    "SNIP": ap.SNIP(),
    "GraSP": ap.GraSP(),
    "SynFlow": ap.SynFlow(),
}
SPARSITIES = (0.9, 0.99)
BATCH = 128


def drop_twice(step: int, steps: int) -> float:
    """After 60 and 120 of 160 epochs the rate falls to a tenth."""
    return 0.1 ** sum(step >= steps * epoch // 160 for epoch in (60, 120))


def main() -> None:
    ask = read_arguments()
    done: dict[str, float] = json.loads(ask.out.read_text()) if ask.out.exists() else {}
    task = ap.load_task(ask.task)
    recipe = ap.Recipe(
        steps=round(ask.epochs * len(task.train_labels) / BATCH),
        batch=BATCH,
        lr=0.1,
        schedule=drop_twice,
        weight_decay=1e-4,
        clip=None,
    )
    todo = {}
    for method in ["dense", *METHODS]:
        every = (0.0,) if method == "dense" else SPARSITIES
        wanted = [s for s in every if f"{method}, {s:g}, seed {ask.seed}" not in done]
        if not wanted:
            continue
        found = [None]
        if method != "dense":
            found = ap.find(ask.parent, task, METHODS[method], sparsity=wanted, seed=ask.seed)
        for sparsity, architecture in zip(wanted, found, strict=True):
            key = f"{method}, {sparsity:g}, seed {ask.seed}"
            run = ap.Retraining(architecture, ask.parent, task, ask.seed, recipe, init="he")
            todo[run] = key
    for run, result in ap.transfer_many(list(todo), time_limit=ask.time_limit):
        accuracy = None if isinstance(result, TrainingError) else round(100 * result.accuracy, 2)
        done[todo[run]] = accuracy
        print(todo[run], accuracy, flush=True)
        with writing(ask.out) as temporary:
            temporary.write_text(json.dumps(done, indent=1) + "\n")
    print_table(done, ask.seed)


def print_table(done: dict[str, float], seed: int) -> None:
    print("\n| method | sparsity | published, mean of 3 | here, one seed | difference |")
    print("| --- | --- | --- | --- | --- |")
    for method, numbers in PUBLISHED.items():
        for sparsity, published in zip(SPARSITIES, numbers, strict=True):
            sparsity = 0.0 if method == "dense" else sparsity
            here = done.get(f"{method}, {sparsity:g}, seed {seed}")
            if here is not None:
                line = f"{method} | {sparsity:g} | {published:.2f} | {here:.2f}"
                print(f"| {line} | {here - published:+.2f} |")
            if method == "dense":
                break


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="cifar_vgg16")
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--epochs", type=float, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, help="seconds; run it again for the rest")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/published.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
