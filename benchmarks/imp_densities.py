"""Does IMP learn anything about its task? The densities of its layers beside those of no training.

The largest of freshly drawn weights, over all layers together, have densities that follow from the
widths of the layers alone: He draws a layer with n inputs from N(0, 2/n), so that the threshold t leaves
the fraction P(|N(0, 2/n)| > t) of it. Where IMP's weights have hardly moved, it leaves the same.

    python benchmarks/imp_densities.py results/paper/vgg19_bn-runs.tar.xz --sparsity 0.9 0.99

Needs no data and no GPU: the densities are those of committed searches. `--rows` takes the rows of
figure 5, and adds how well these densities do at random places (IMP, reshuffled) beside all others.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pandas as pd
import torch
from classifier_signal import read
from scipy.optimize import brentq
from scipy.stats import norm

import aprune as ap
from aprune.experiments.report import title_of
from aprune.maths.select import keep_count
from aprune.maths.statistics import paired_interval
from aprune.training.network import outline_for

METHODS = ("ap", "imp")
Densities = dict[str, list[float]]


def main() -> None:
    ask = read_arguments()
    found: dict[tuple[str, float], Densities] = defaultdict(lambda: defaultdict(list))
    parents = set()
    for entry in read(ask.archive):
        about = entry["description"]
        if about["kind"] != "search":
            continue
        parents.add(about["parent"])
        for sparsity, layers in zip(about["sparsities"], entry["result"]["densities"], strict=True):
            for layer, density in layers.items():
                found[about["method"]["name"], sparsity][layer].append(density)
    (parent,) = parents
    shapes = shapes_of(parent)
    sizes = {name: shape.numel() for name, shape in shapes.items()}
    for sparsity in ask.sparsities:
        print(f"\n{parent}, sparsity {sparsity:g}\n")
        untrained = largest_fresh_weights(shapes, sparsity)
        write_table(sizes, untrained, {method: found[method, sparsity] for method in METHODS})
    if ask.rows is not None:
        write_differences(pd.read_parquet(ask.rows), ask.sparsities)


def shapes_of(parent: str) -> dict[str, torch.Size]:
    """Return the shapes of the connections of a parent with ten classes, without making its weights."""
    model = outline_for(parent, SimpleNamespace(shape=(3, 32, 32), num_classes=10))
    return {name: weight.shape for name, weight in ap.find_connections(model).items()}


def largest_fresh_weights(shapes: Mapping[str, torch.Size], sparsity: float) -> dict[str, float]:
    """Return the density of each layer when only the largest of He's weights are left."""
    sizes = {name: shape.numel() for name, shape in shapes.items()}
    widths = {name: (2 / shape[1:].numel()) ** 0.5 for name, shape in shapes.items()}
    kept = keep_count(sum(sizes.values()), sparsity)

    def left(threshold: float) -> dict[str, float]:
        return {name: 2 * float(norm.sf(threshold / width)) for name, width in widths.items()}

    def surplus(threshold: float) -> float:
        return sum(sizes[name] * density for name, density in left(threshold).items()) - kept

    return left(brentq(surplus, 0.0, 10 * max(widths.values()), xtol=1e-12))


def write_table(
    sizes: Mapping[str, int], untrained: Mapping[str, float], found: Mapping[str, Densities]
) -> None:
    """Print the densities of all layers, mean over seeds, and how far they are apart."""
    print("| layer | largest fresh weights |", " | ".join(map(title_of, found)), "|")
    print("| --- | ---: |" + " ---: |" * len(found))
    for layer, density in untrained.items():
        cells = [f"{mean(layers[layer]):.4f}" for layers in found.values()]
        print(f"| {layer} | {density:.4f} |", " | ".join(cells), "|")
    print()
    kept = sum(sizes[layer] * density for layer, density in untrained.items())
    for name, layers in found.items():
        apart = sum(
            sizes[layer] * abs(mean(layers[layer]) - density)
            for layer, density in untrained.items()
        )
        seeds = len(next(iter(layers.values())))
        print(
            f"{title_of(name)}: {apart / 2 / kept:.1%} of its connections in other layers; {seeds} seeds"
        )


def write_differences(rows: pd.DataFrame, sparsities: Sequence[float]) -> None:
    """Print what IMP, reshuffled, is ahead of the others by, and the mean of these sparsities."""
    others = [("ap", ""), ("ap", "reshuffled"), ("imp", ""), ("random", ""), ("dense", "")]
    if "reshuffled" not in set(rows["variant"]):
        sys.exit("these rows have no reshuffled architectures: expected those of figure5")
    print("\n| IMP, reshuffled − | ", " | ".join(f"{s:g}" for s in sparsities), "| together |")
    print("| --- |" + " --- |" * (len(sparsities) + 1))
    for method, variant in others:
        pairs = [
            (values(rows, "imp", "reshuffled", s), values(rows, method, variant, s))
            for s in sparsities
        ]
        together = [
            [mean(of_seed) for of_seed in zip(*side, strict=True)]
            for side in zip(*pairs, strict=True)
        ]
        cells = [f"{paired_interval(*pair):+.3f}" for pair in [*pairs, together]]
        print(
            f"| {title_of(f'{method}, {variant}' if variant else method)} |", " | ".join(cells), "|"
        )


def values(rows: pd.DataFrame, method: str, variant: str, sparsity: float) -> list[float]:
    """Return accuracies in the order of the seeds."""
    sparsity = 0.0 if method == "dense" else sparsity
    which = (rows["method"] == method) & (rows["variant"] == variant)
    return list(rows[which & (rows["sparsity"] == sparsity)].sort_values("seed")["accuracy"])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="of runs, as under results/paper/")
    parser.add_argument("--rows", type=Path, help="of figure 5: what the densities are worth")
    parser.add_argument(
        "--sparsity", dest="sparsities", type=float, nargs="+", default=[0.5, 0.9, 0.95, 0.99]
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
