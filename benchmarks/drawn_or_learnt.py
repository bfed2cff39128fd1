"""What decides which connections of a layer stay: how they were drawn, or what was learnt?

AP draws w, IMP draws weights; both let go first of what is drawn small. Of the connections that a layer
keeps, this counts how many are those that were drawn largest in it. By chance it would be the layer's
density; where it is near 1, the connections within a layer are random, though they took a search.

    python benchmarks/drawn_or_learnt.py --parent mlp --task digits --classes 0 1 2 3 4 --steps 500
"""

import argparse
from collections.abc import Mapping

from torch import Tensor

import aprune as ap
from aprune.experiments.report import title_of
from aprune.initialise import initialise
from aprune.maths.select import keep_largest
from aprune.maths.statistics import summarise
from aprune.methods import Method
from aprune.methods.searching import draw_w


def main() -> None:
    ask = read_arguments()
    task = ap.load_task(ask.task, classes=ask.classes, size=ask.size)
    recipe = ap.Recipe.for_search(ap.build_parent(ask.parent, task), task)
    recipe = recipe.but(steps=ask.steps, batch=ask.batch)
    print(f"{ask.parent}, {ask.task}, {recipe.steps} steps of {recipe.batch}, {ask.seeds} seeds\n")
    print(
        "| method |", " | ".join(f"{sparsity:g}" for sparsity in ask.sparsities), "| in the layer |"
    )
    print("| --- |" + " --- |" * (len(ask.sparsities) + 1))
    for method in (ap.AP(w_start=ask.w_start, w_scale=ask.w_scale), ap.IMP()):
        shares: list[list[float]] = [[] for _ in ask.sparsities]
        chances: list[list[float]] = [[] for _ in ask.sparsities]
        for seed in range(ask.seeds):
            found = ap.find(
                ask.parent, task, method, sparsity=ask.sparsities, seed=seed, recipe=recipe
            )
            drawn = draw(method, ask.parent, task, seed)
            for place, architecture in enumerate(found):
                share, chance = compare(architecture, drawn)
                shares[place].append(share)
                chances[place].append(chance)
        for rows, what in ((shares, "drawn largest"), (chances, "by chance")):
            print(
                f"| {title_of(method.name)} |",
                " | ".join(f"{summarise(row)}" for row in rows),
                end="",
            )
            print(f" | {what} |", flush=True)


def draw(method: Method, parent: str, task: ap.Task, seed: int) -> Mapping[str, Tensor]:
    """Return what a search with that seed draws, as `find` does it."""
    model = ap.build_parent(parent, task)
    connections = ap.find_connections(model)
    if isinstance(method, ap.AP):
        return draw_w(method, connections, seed)
    initialise(model, scheme="he", seed=seed)
    return {name: weight.detach().abs() for name, weight in connections.items()}


def compare(architecture: ap.Architecture, drawn: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return how many of the connections were drawn largest in their layer, and how many by chance."""
    shared, expected = 0, 0.0
    for name, mask in architecture.masks().items():
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
