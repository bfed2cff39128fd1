"""Which recipe retrains a sparse architecture best? CIFAR-100, ten classes, 500 images.

Random connections (or an architecture that `aprune find` wrote) are retrained with every combination of
the settings given. Accuracy is measured on the training images of the classes that are not among the
500: no test image is looked at.

    python benchmarks/retraining.py --parent resnet18 --sparsity 0.95 --steps 500 \
        --lr 0.05 0.2 --clip 1 none --weight-decay 5e-4 5e-3 --mixup 0 0.5 --seeds 1
"""

import argparse
import itertools
import time

import aprune as ap
from aprune.errors import TrainingError
from aprune.maths.statistics import summarise

SETTINGS = ("steps", "lr", "batch", "schedule", "clip", "weight_decay", "mixup")


def main() -> None:
    ask = read_arguments()
    print(f"| {' | '.join(SETTINGS)} | accuracy | training loss | s a run |")
    print("| --- " * (len(SETTINGS) + 3) + "|")
    for values in itertools.product(*(getattr(ask, name) for name in SETTINGS)):
        recipe = ap.Recipe(**dict(zip(SETTINGS, values, strict=True)))
        row = f"| {' | '.join(str(value) for value in values)} |"
        accuracies, losses, begin = [], [], time.perf_counter()
        for seed in range(ask.seeds):
            task = ap.load_task(
                ask.task, classes=ask.classes, images=ask.images, seed=seed, split="tuning"
            )
            try:
                result = ap.transfer(
                    architecture(ask, task, seed),
                    ask.parent,
                    task,
                    seed=seed,
                    recipe=recipe,
                    init=ask.init,
                )
            except TrainingError:
                print(f"{row} seed {seed} diverged | | |", flush=True)
                continue
            accuracies.append(result.accuracy)
            losses.append(result.curve.final())
        if accuracies:
            cell = summarise(accuracies)
            spread = f" ± {cell.std:.3f}" if cell.n > 1 else ""
            seconds = (time.perf_counter() - begin) / ask.seeds
            print(
                f"{row} {cell.mean:.3f}{spread} | {sum(losses) / len(losses):.3f} | {seconds:.0f} |",
                flush=True,
            )


def architecture(ask: argparse.Namespace, task: ap.Task, seed: int) -> ap.Architecture | None:
    if ask.architecture:
        return ap.Architecture.load(ask.architecture)
    if ask.sparsity == 0:
        return None
    return ap.find(ask.parent, task, ap.Random(), sparsity=ask.sparsity, seed=seed)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="resnet18")
    parser.add_argument(
        "--sparsity", type=float, default=0.95, help="of random connections; 0: dense"
    )
    parser.add_argument("--architecture", help="a file to retrain in place of random connections")
    parser.add_argument("--init", default="auto")
    parser.add_argument("--task", default="cifar100")
    parser.add_argument("--classes", type=number_or_list, default=10)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[1600])
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05])
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--schedule", nargs="+", default=["one_cycle"])
    parser.add_argument("--clip", type=number_or_none, nargs="+", default=[1.0])
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[5e-4])
    parser.add_argument("--mixup", type=float, nargs="+", default=[0.0])
    return parser.parse_args()


def number_or_none(text: str) -> float | None:
    return None if text == "none" else float(text)


def number_or_list(text: str) -> int | list[int]:
    return [int(part) for part in text.split(",")] if "," in text else int(text)


if __name__ == "__main__":
    main()
