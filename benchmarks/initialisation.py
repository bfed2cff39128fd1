"""Which fresh weights suit an architecture? Digits 0–4 → 5–9 with 50 images, on the CPU.

Every scheme retrains the same AP architectures, and the dense parent, with the same learning rate.
Accuracy is measured on training images of the new digits that are not among the 50, so that a rule may
be chosen by it.

    python benchmarks/initialisation.py
"""

import torch

import aprune as ap
from aprune.maths.statistics import summarise

PARENTS = ("mlp", "conv", "conv_bn")
SPARSITIES = (0.9, 0.95, 0.98)
SCHEMES = ("normal", "he", "he_density", "he_fan_in", "auto")
SEEDS = range(100, 105)
NEW = [5, 6, 7, 8, 9]


def main() -> None:
    torch.set_num_threads(1)
    print("| parent | sparsity | " + " | ".join(SCHEMES) + " |")
    print("| --- " * (2 + len(SCHEMES)) + "|")
    big = ap.load_task("digits", classes=[0, 1, 2, 3, 4])
    for parent in PARENTS:
        search = ap.Recipe.for_search(ap.build_parent(parent, big), big).but(steps=500)
        scores: dict[tuple[float, str], list[float]] = {}
        for seed in SEEDS:
            small = ap.load_task("digits", classes=NEW, images=50, seed=seed, split="tuning")
            found = ap.find(parent, big, sparsity=SPARSITIES, seed=seed, recipe=search)
            for sparsity, architecture in zip((0.0, *SPARSITIES), (None, *found), strict=True):
                for scheme in SCHEMES:
                    result = ap.transfer(
                        architecture,
                        parent,
                        small,
                        seed=seed,
                        init=scheme,
                        recipe=ap.Recipe(steps=200, lr=0.1),
                    )
                    scores.setdefault((sparsity, scheme), []).append(result.accuracy)
        for sparsity in (0.0, *SPARSITIES):
            cells = [summarise(scores[sparsity, scheme]) for scheme in SCHEMES]
            text = " | ".join(f"{cell.mean:.3f} ± {cell.std:.3f}" for cell in cells)
            print(f"| {parent} | {sparsity:g} | {text} |", flush=True)


if __name__ == "__main__":
    main()
