"""Does the signal decide under the paper's protocol? Accuracy beside what the classifier lets through.

Narrow fresh weights, N(0, ε²), let less of a signal through a layer the fewer inputs a unit has: it
changes by ε·√(inputs·density/2) a layer. Norms make up for that in the convolutions, but nothing does
in the linear layers behind them. This takes the committed runs, multiplies the factors of these layers
for each architecture, and prints them beside its accuracy, strongest signal first.

    python benchmarks/classifier_signal.py results/paper/vgg19_bn-runs.tar.xz
"""

import argparse
import json
import math
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from aprune.experiments.report import title_of
from aprune.experiments.store import key_of
from aprune.maths.statistics import summarise

EPSILON = 0.01
INPUTS = {"classifier.0.weight": 25_088, "classifier.3.weight": 4_096, "classifier.6.weight": 4_096}


def main() -> None:
    ask = read_arguments()
    runs = {key_of(entry["description"]): entry for entry in read(ask.archive)}
    accuracies: dict[tuple[str, float], list[float]] = defaultdict(list)
    signals: dict[tuple[str, float], list[float]] = defaultdict(list)
    for entry in runs.values():
        about = entry["description"]
        if about.get("init") != "normal" or about["task"]["images"] != ask.images:
            continue
        arm = arm_of(about), about["sparsity"]
        accuracies[arm].append(entry["result"]["accuracy"])
        signals[arm].append(signal_of(densities_of(about, runs)))
    mean = {
        arm: math.exp(sum(map(math.log, of_arm)) / len(of_arm)) for arm, of_arm in signals.items()
    }
    order = sorted(mean, key=mean.__getitem__, reverse=True)
    print("| signal | method | sparsity | accuracy | seeds |")
    print("| ---: | --- | --- | --- | ---: |")
    for arm in order:
        found = summarise(accuracies[arm])
        print(f"| {mean[arm]:.5f} | {title_of(arm[0])} | {arm[1]:g} | {found} | {found.n} |")
    for title, kept in (
        ("above", [arm for arm in order if mean[arm] >= ask.split]),
        ("below", [arm for arm in order if mean[arm] < ask.split]),
    ):
        values = [summarise(accuracies[arm]).mean for arm in kept]
        rank = spearmanr([mean[arm] for arm in kept], values).statistic
        print(f"\n{title} {ask.split:g}: rank correlation {rank:+.2f} over {len(kept)} arms")


def read(archive: Path) -> Iterator[dict[str, Any]]:
    with tarfile.open(archive) as opened:
        for member in filter(tarfile.TarInfo.isfile, opened):
            file = opened.extractfile(member)
            assert file is not None
            yield json.load(file)


def arm_of(about: Mapping[str, Any]) -> str:
    method = about["search"]["method"]["name"] if about["search"] else "dense"
    return f"{method}, reshuffled" if about.get("reshuffled") else method


def densities_of(about: Mapping[str, Any], runs: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the density of each layer; shuffling within layers leaves it as it is."""
    if about["search"] is None:
        return dict.fromkeys(INPUTS, 1.0)
    search = runs[key_of(about["search"])]
    place = search["description"]["sparsities"].index(about["sparsity"])
    return search["result"]["densities"][place]


def signal_of(densities: Mapping[str, float]) -> float:
    """Return what is left of a signal behind the linear layers, at the start."""
    return math.prod(
        EPSILON * math.sqrt(inputs * densities[name] / 2) for name, inputs in INPUTS.items()
    )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--split", type=float, default=0.05, help="signal to part the arms at")
    return parser.parse_args()


if __name__ == "__main__":
    main()
