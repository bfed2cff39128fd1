"""Which recipe retrains a sparse architecture best? CIFAR-100, ten classes, 500 images.

Random connections, the dense parent (sparsity 0) and architectures that `aprune find` wrote are
retrained with every combination of the settings given, in bulk. Accuracy is measured on the training
images of the classes that are not among the 500: no test image is looked at. Each seed draws its
classes, and takes the architecture of its number where the name of a file has a `{seed}` in it.

    python benchmarks/retraining.py --parent resnet18 --sparsity 0 0.95 --steps 500 \
        --lr 0.05 0.2 --clip 1 none --weight-decay 5e-4 5e-3 --mixup 0 0.5 --seeds 1
"""

import argparse
import itertools
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import aprune as ap
from aprune.maths.statistics import summarise

SETTINGS = ("steps", "lr", "batch", "schedule", "clip", "weight_decay", "mixup")


class Cell(NamedTuple):
    """A place in the table: the settings of a recipe, and what is retrained with it."""

    values: tuple[object, ...]
    arm: str


def main() -> None:
    ask = read_arguments()
    recipes = list(itertools.product(*(getattr(ask, name) for name in SETTINGS)))
    begin = time.perf_counter()
    cells: dict[ap.Retraining, Cell] = {}
    for seed in range(ask.seeds):
        task = ap.load_task(
            ask.task, classes=ask.classes, images=ask.images, seed=seed, split="tuning"
        )
        for arm, architecture in find_arms(ask, task, seed).items():
            for values in recipes:
                recipe = ap.Recipe(**dict(zip(SETTINGS, values, strict=True)))
                one = ap.Retraining(architecture, ask.parent, task, seed, recipe, init=ask.init)
                cells[one] = Cell(values, arm)
    found: dict[Cell, list[float]] = defaultdict(list)
    losses: dict[Cell, list[float]] = defaultdict(list)
    for one, result in ap.transfer_many(list(cells), device=ask.device):
        if isinstance(result, ap.Result):
            found[cells[one]].append(result.accuracy)
            losses[cells[one]].append(result.curve.final())
    arms = list(dict.fromkeys(cell.arm for cell in cells.values()))
    print(f"| {' | '.join((*SETTINGS, *arms))} |")
    print("| --- " * (len(SETTINGS) + len(arms)) + "|")
    for values in recipes:
        parts = [describe(found[Cell(values, arm)], losses[Cell(values, arm)]) for arm in arms]
        print(f"| {' | '.join([*map(str, values), *parts])} |")
    seconds = (time.perf_counter() - begin) / len(cells)
    print(f"\nMean ± standard deviation, in brackets the training loss; {seconds:.1f} s a run")


def find_arms(
    ask: argparse.Namespace, task: ap.Task, seed: int
) -> dict[str, ap.Architecture | None]:
    """Return what is retrained with this seed, by its name in the table."""
    arms: dict[str, ap.Architecture | None] = {}
    for sparsity in ask.sparsity:
        if sparsity == 0:
            arms["dense"] = None
        else:
            arms[f"random {sparsity:g}"] = ap.find(
                ask.parent, task, ap.Random(), sparsity=sparsity, seed=seed, device=ask.device
            )
    for name in ask.architecture:
        arms[Path(name).name] = ap.Architecture.load(name.replace("{seed}", str(seed)))
    return arms


def describe(accuracies: list[float], losses: list[float]) -> str:
    """Return mean and spread over the seeds; what diverged is missing."""
    if not accuracies:
        return "diverged"
    cell = summarise(accuracies)
    spread = f" ± {cell.std:.3f}" if cell.n > 1 else ""
    return f"{cell.mean:.3f}{spread} ({sum(losses) / len(losses):.2f})"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="resnet18")
    parser.add_argument(
        "--sparsity", type=float, nargs="*", default=[0.95], help="of random connections; 0: dense"
    )
    parser.add_argument(
        "--architecture", nargs="*", default=[], help="files to retrain as well; may have a {seed}"
    )
    parser.add_argument("--init", default="auto")
    parser.add_argument("--task", default="cifar100")
    parser.add_argument("--classes", type=number_or_list, default=10)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, nargs="+", default=[1600])
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1])
    parser.add_argument("--batch", type=int, nargs="+", default=[128])
    parser.add_argument("--schedule", nargs="+", default=["hold"])
    parser.add_argument("--clip", type=number_or_none, nargs="+", default=[1.0])
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[5e-4])
    parser.add_argument("--mixup", type=float, nargs="+", default=[0.5])
    return parser.parse_args()


def number_or_none(text: str) -> float | None:
    return None if text == "none" else float(text)


def number_or_list(text: str) -> int | list[int]:
    return [int(part) for part in text.split(",")] if "," in text else int(text)


if __name__ == "__main__":
    main()
