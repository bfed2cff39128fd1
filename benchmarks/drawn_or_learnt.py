"""What decides which connections of a layer stay: how they were drawn, or what was learnt?

AP draws w, IMP draws weights; both let go first of what is drawn small. Of the connections that a layer
keeps, this counts how many are those that were drawn largest in it. By chance it would be the layer's
density; where it is near 1, the connections within a layer are random, though they took a search.

    python benchmarks/drawn_or_learnt.py --parent mlp --task digits --classes 0 1 2 3 4 --steps 500

With `--store` it searches for nothing and takes the architectures of `aprune reproduce`, on the kind of
device where they were found: a GPU draws other numbers than a CPU.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import aprune as ap
from aprune.descent import draw_w
from aprune.errors import SettingError
from aprune.experiments import paper
from aprune.experiments.plan import Plan
from aprune.experiments.report import title_of
from aprune.experiments.store import Store
from aprune.initialise import initialise
from aprune.maths.select import keep_largest
from aprune.maths.statistics import summarise
from aprune.methods import Method
from aprune.training.device import choose_device
from aprune.training.network import network_for


class Found(NamedTuple):
    """What a search of some seed has found.

    Attributes:
        method: That searched, with its settings.
        task: Where.
        seed: Of the search.
        architectures: One for each sparsity that was asked for.
    """

    method: Method
    task: ap.Task
    seed: int
    architectures: list[ap.Architecture]


def main() -> None:
    ask, device = read_arguments(), choose_device()
    searches = search(ask) if ask.store is None else read(ask, device)
    shares: dict[str, list[list[tuple[float, float]]]] = {}
    for found in searches:
        drawn = draw(found, ask.parent, device)
        row = [compare(architecture, drawn) for architecture in found.architectures]
        shares.setdefault(found.method.name, []).append(row)
        if len(shares[found.method.name]) == ask.seeds:
            write(found.method.name, shares[found.method.name])


def begin(ask: argparse.Namespace, title: str) -> None:
    """Print what stands above the numbers."""
    print(f"{ask.parent}, {title}, {ask.seeds} seeds\n")
    print(
        "| method |", " | ".join(f"{sparsity:g}" for sparsity in ask.sparsities), "| in the layer |"
    )
    print("| --- |" + " --- |" * (len(ask.sparsities) + 1))


def write(name: str, rows: list[list[tuple[float, float]]]) -> None:
    """Print what the searches of one method have in common with their draws."""
    for which, what in enumerate(("drawn largest", "by chance")):
        cells = (summarise([pair[which] for pair in column]) for column in zip(*rows, strict=True))
        print(f"| {title_of(name)} |", " | ".join(map(str, cells)), f"| {what} |", flush=True)


def search(ask: argparse.Namespace) -> Iterator[Found]:
    """Search anew."""
    task = ap.load_task(ask.task, classes=ask.classes, size=ask.size)
    recipe = ap.Recipe.for_search(ap.build_parent(ask.parent, task), task)
    recipe = recipe.but(steps=ask.steps, batch=ask.batch)
    begin(ask, f"{ask.task}, {recipe.steps} steps of {recipe.batch}")
    for method in (ap.AP(w_start=ask.w_start, w_scale=ask.w_scale), ap.IMP()):
        for seed in range(ask.seeds):
            found = ap.find(
                ask.parent, task, method, sparsity=ask.sparsities, seed=seed, recipe=recipe
            )
            yield Found(method, task, seed, found)


def read(ask: argparse.Namespace, device: torch.device) -> Iterator[Found]:
    """Read what `aprune reproduce` has found for figure 5.

    Raises:
        SettingError: Something is missing.
    """
    plan, store = Plan(paper.plan("figure5", ask.parent, scale=ask.scale), device), Store(ask.store)
    begin(ask, f"figure 5 in {ask.store}")
    for name in ("ap", "imp"):
        for seed in range(ask.seeds):
            run = plan.search(name, seed)
            assert run is not None
            every = [store.get_architecture(run.describe_architecture(s)) for s in ask.sparsities]
            kept = [architecture for architecture in every if architecture is not None]
            if len(kept) < len(every):
                raise SettingError(
                    f"{ask.store} lacks architectures of {name}, seed {seed}: expected those of"
                    f" `aprune reproduce figure5 --parent {ask.parent} --out {ask.store}`"
                )
            yield Found(run.method, run.task, seed, kept)


def draw(found: Found, parent: str, device: torch.device) -> Mapping[str, Tensor]:
    """Return what a search draws, as it does that."""
    model = network_for(parent, found.task, device, seed=found.seed, weights=False)
    connections = ap.find_connections(model)
    if isinstance(found.method, ap.AP):
        return draw_w(found.method, connections, found.seed)
    initialise(model, scheme="he", seed=found.seed)
    return {name: weight.detach().abs() for name, weight in connections.items()}


def compare(architecture: ap.Architecture, drawn: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return how many of the connections were drawn largest in their layer, and how many by chance."""
    shared, expected = 0, 0.0
    for name, bits in architecture.masks().items():
        mask = bits.to(drawn[name].device)
        kept = int(mask.sum())
        largest = keep_largest({name: drawn[name]}, kept)[name]
        shared += int((largest & mask).sum())
        expected += kept * kept / mask.numel()
    return shared / architecture.kept, expected / architecture.kept


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="mlp")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--classes", type=int, nargs="+")
    parser.add_argument("--size", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--w-start", type=float, default=0.0)
    parser.add_argument("--w-scale", type=float, default=2.0)
    parser.add_argument(
        "--sparsity", dest="sparsities", type=float, nargs="+", default=[0.5, 0.9, 0.95, 0.99]
    )
    parser.add_argument("--store", type=Path, help="the folder of `aprune reproduce`")
    parser.add_argument("--scale", choices=("paper", "small"), default="paper", help="of --store")
    return parser.parse_args()


if __name__ == "__main__":
    main()
