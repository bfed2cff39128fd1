"""How hard are the ten classes of CIFAR-100 that a seed draws? Asked of a model that is not a network.

Ridge regression on the responses to patches of the 500 training images themselves, whitened and pooled.
Accuracy is measured on 1,500 training images that are not among the 500, and the best of five penalties
counts: it says which classes are hard, not how good such a model is. No test image is looked at.

    python benchmarks/class_draws.py --seeds 6
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot, unfold

import aprune as ap

PATCH, PATCHES, JUDGED = 6, 1_000, 1_500
PENALTIES = (1e3, 3e3, 1e4, 3e4, 1e5)


def main() -> None:
    ask = read_arguments()
    draws = [(f"drawn by seed {seed}", 10, seed) for seed in range(ask.seeds)]
    draws.append(("every tenth", list(range(0, 100, 10)), 0))
    draws.append(("the first ten with an even number", list(range(0, 20, 2)), 0))
    print("| classes | accuracy |\n| --- | --- |")
    for name, classes, seed in draws:
        print(f"| {name} | {judge(classes, seed):.3f} |", flush=True)


def judge(classes: int | list[int], seed: int) -> float:
    task = ap.load_task("cifar100", classes=classes, images=500, seed=seed, split="tuning")
    generator = torch.Generator().manual_seed(0)
    images = torch.cat([task.train_images, task.train_images.flip(3)])
    labels = torch.cat([task.train_labels] * 2)
    some = torch.randperm(len(task.test_images), generator=generator)[:JUDGED]
    respond = responses(images, generator)
    known, asked = respond(images), respond(task.test_images[some])
    middle, spread = known.mean(0), known.std(0) + 1e-3
    known, asked = (known - middle) / spread, (asked - middle) / spread
    wanted = one_hot(labels, task.num_classes).float() - 1 / task.num_classes
    alike = known @ known.T
    scores = []
    for penalty in PENALTIES:
        weights = torch.linalg.solve(alike + penalty * torch.eye(len(alike)), wanted)
        right = (asked @ (known.T @ weights)).argmax(1) == task.test_labels[some]
        scores.append(right.float().mean().item())
    return max(scores)


def responses(images: Tensor, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Return a function from images to how strongly patches of `images` respond, in 3 × 3 places."""
    patches = cut(images, stride=3).reshape(-1, 3 * PATCH**2)
    patches = patches[torch.randperm(len(patches), generator=generator)[:40_000]]
    middle = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - middle).T @ (patches - middle) / len(patches))
    whiten = vectors @ torch.diag((values + 0.1) ** -0.5) @ vectors.T
    filters = torch.nn.functional.normalize((patches[:PATCHES] - middle) @ whiten)

    def respond(some: Tensor) -> Tensor:
        parts = []
        for part in some.split(250):
            answer = ((cut(part, stride=2) - middle) @ whiten @ filters.T).transpose(1, 2)
            answer = answer.unflatten(2, (14, 14))
            least = 0.25 * answer.std()
            both = torch.cat([answer - least, -answer - least], 1).clamp(min=0)
            parts.append(adaptive_avg_pool2d(both, 3).flatten(1))
        return torch.cat(parts)

    return respond


def cut(images: Tensor, stride: int) -> Tensor:
    """Cut images into patches [image, place, pixel], each with its brightness and contrast taken out."""
    pixels = images.float() / 255
    pixels = pixels - pixels.mean((1, 2, 3), keepdim=True)
    pixels = pixels / (pixels.std((1, 2, 3), keepdim=True) + 0.05)
    patches = unfold(pixels, PATCH, stride=stride).transpose(1, 2)
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / (patches.std(-1, keepdim=True) + 0.1)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
