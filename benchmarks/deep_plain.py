"""How close together may w start? Searches in deep stacks of linear layers without norms, on digits.

Where many w stand near the threshold at once, many connections flip at once, and a deep network without
norms dies of it. This trains stacks with the default width of w, and with w that all start near 1.

    python benchmarks/deep_plain.py --depths 8 14 --seeds 3

Prints the training loss at the end (chance is 2.303), at the last sparsity.
"""

import argparse
import warnings
from itertools import pairwise

import torch
from torch import nn

import aprune as ap
from aprune.errors import NetworkWarning
from aprune.finding import search
from aprune.maths.statistics import summarise

SPARSITIES = (0.9, 0.95, 0.98)
STEPS, WIDTH, LAST = 800, 128, 20
STARTS = ((0.0, 2.0), (1.0, 0.5), (1.0, 0.3), (1.0, 0.1), (1.0, 0.01))


def main() -> None:
    ask = read_arguments()
    warnings.simplefilter("ignore", NetworkWarning)
    task = ap.load_task("digits")
    print("| layers |", " | ".join(f"{start:g} + {width:g} |N|" for start, width in STARTS), "|")
    print("| --- |" + " --- |" * len(STARTS))
    for depth in ask.depths:
        cells = []
        for start, width in STARTS:
            method = ap.AP(w_start=start, w_scale=width)
            losses = [final_loss(task, depth, method, seed) for seed in range(ask.seeds)]
            cells.append(f"{summarise(losses)}")
        print(f"| {depth} |", " | ".join(cells), "|", flush=True)


def final_loss(task: ap.Task, depth: int, method: ap.AP, seed: int) -> float:
    """Return the mean training loss of the last steps of a search."""
    torch.manual_seed(seed)
    network = stack(depth, task)
    recipe = ap.Recipe.for_search(network, task).but(steps=STEPS)
    found = search(
        network, task, method, sparsities=SPARSITIES, seed=seed, recipe=recipe, device="cpu"
    )
    return sum(found.curves[0].loss[-LAST:]) / LAST


def stack(depth: int, task: ap.Task) -> nn.Sequential:
    """Make a network of so many linear layers."""
    sizes = [task.train_images[0].numel(), *[WIDTH] * (depth - 1)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, task.num_classes))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[8, 14])
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
