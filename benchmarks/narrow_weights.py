"""Can a network learn from weights out of N(0, ε²)? How far its first scores differ between images.

Random connections at some sparsities, some widths ε, 64 training images of ten classes of CIFAR-100, no
training. Scores that are the same for all images give no gradient to learn from; scores that differ by
tens have a loss to match. About one is what a network starts from that is initialised as it should be.

    python benchmarks/narrow_weights.py --parents vgg19 vgg19_bn
"""

import argparse

import torch
from torch import nn

import aprune as ap
from aprune.connections import find_connections
from aprune.initialise import initialise
from aprune.parents import build_parent
from aprune.training.batch import Normalise


def main() -> None:
    ask = read_arguments()
    task = ap.load_task("cifar100", classes=10, images=500, seed=0)
    images = Normalise(task.mean, task.std)(task.train_images[: ask.images])
    for parent in ask.parents:
        print(f"\n| {parent}, ε |", " | ".join(f"{sparsity:g}" for sparsity in ask.sparsity), "|")
        print("| --- |" + " --- |" * len(ask.sparsity))
        model = build_parent(parent, task)
        for epsilon in ask.epsilon:
            spreads = []
            for sparsity in ask.sparsity:
                initialise(model, draw_masks(model, sparsity), "normal", seed=0, epsilon=epsilon)
                spreads.append(spread(model, images))
            print(
                f"| {epsilon:g} |", " | ".join(f"{value:.0e}" for value in spreads), "|", flush=True
            )


def draw_masks(model: nn.Module, sparsity: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(weight.shape, generator=generator) >= sparsity
        for name, weight in find_connections(model).items()
    }


@torch.no_grad()
def spread(model: nn.Module, images: torch.Tensor) -> float:
    """Return the standard deviation of a score over the images, with norms as in training."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    return float(model(images).std(0).mean())


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parents", nargs="+", default=["vgg19", "vgg19_bn"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.01, 0.02, 0.03, 0.05, 0.1])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.1, 0.5, 0.9, 0.99])
    parser.add_argument("--images", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main()
