"""Would AP find better architectures if its search went otherwise? Changes that are no settings.

Weights that go back to their start, or are drawn anew, while connections go; layers that each take a
step of w of their own, or move as a whole; w that all start in one place; mixed images; architectures
that are all taken at the end, by the largest w. Judged on training images of the new task that are not
learnt from, with seeds that no other table uses; differences to the search as it is are taken seed by
seed.

    python benchmarks/ap_variants.py --parent conv_bn --seeds 12

goes on where it was interrupted; what was measured stays in the JSON file.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import aprune as ap
from aprune.descent.search import Search
from aprune.descent.step import Descent
from aprune.files import writing
from aprune.initialise import initialise
from aprune.maths.select import keep_count, keep_largest
from aprune.maths.statistics import paired_interval, summarise
from aprune.methods import ap as method
from aprune.progress import Clock
from aprune.training import Hook

SPARSITIES = (0.9, 0.95, 0.98, 0.99)
STEPS, RETRAINED = 500, 400
fit = method.fit


class Rewind(Hook):
    """Sets the weights back, or draws others, at some steps."""

    def __init__(self, model: nn.Module, steps: set[int], draw: Callable[[int], dict[str, Tensor]]):
        self.parameters = {
            name.replace("parametrizations.", "").replace(".original", ""): parameter
            for name, parameter in model.named_parameters()
        }
        self.steps, self.draw = steps, draw

    @torch.no_grad()
    def after(self, step: int) -> None:
        if step in self.steps:
            for name, weight in self.draw(step).items():
                self.parameters[name].copy_(weight)


def rewinding(parent: str, seed: int, fractions: tuple[float, ...], *, anew: bool) -> Any:
    """Return a `fit` whose weights go back to where they started, or to others, at these times."""

    def changed(model: nn.Module, task: ap.Task, recipe: ap.Recipe, **how: Any) -> Any:
        def draw(step: int) -> dict[str, Tensor]:
            other = ap.build_parent(parent, task)
            initialise(other, scheme="he", seed=seed + (10_000 + step if anew else 0))
            return dict(other.named_parameters())

        steps = {round(fraction * recipe.steps) for fraction in fractions}
        hooks = [*how.pop("hooks"), Rewind(model, steps, draw)]
        return fit(model, task, recipe, hooks=hooks, **how)

    return mock.patch.object(method, "fit", changed)


@torch.no_grad()
def update_by_layer(self: Descent) -> None:
    """Take a step of w whose size goes by each layer's own gradient."""
    state = self.__dict__.setdefault("own", [(torch.zeros(()), torch.zeros(())) for _ in self.w])
    for w, (running, weight) in zip(self.w, state, strict=True):
        if w.grad is not None:
            square = w.grad.square().mean()
            running.lerp_(square, 1 - self.memory)
            weight.lerp_(torch.ones(()), 1 - self.memory)
            w.grad /= torch.maximum(running / weight, square).sqrt().clamp(min=1e-30)
    usual_update(self)


usual_update = Descent.update


def take_all_at_the_end(self: Search, sparsity: float) -> None:
    """Take what the search has passed once more when it has come to the last: w have moved since."""
    usual_take(self, sparsity)
    if sparsity == self.sparsities[-1]:
        for one in self.sparsities:
            self.masks[one] = keep_largest(self.w, keep_count(self.descent.total, one))


usual_take = Search._take


def search(name: str, parent: str, task: ap.Task, seed: int) -> list[ap.Architecture]:
    recipe = ap.Recipe.for_search(ap.build_parent(parent, task), task).but(steps=STEPS)
    with patches(name, parent, seed):
        if name == "mixed images":
            recipe = recipe.but(mixup=0.5)
        if name == "twice as long":
            recipe = recipe.but(steps=2 * STEPS)
        ap_as_named = replace(ap.AP(), **SETTINGS.get(name, {}))
        wanted = list(SPARSITIES)
        return ap.find(
            parent, task, ap_as_named, sparsity=wanted, seed=seed, recipe=recipe, device="cpu"
        )


@contextlib.contextmanager
def patches(name: str, parent: str, seed: int) -> Iterator[None]:
    times = {
        "back to the start, once": (False, (0.5,)),
        "back to the start, 4 times": (False, (0.3, 0.45, 0.6, 0.75)),
        "drawn anew, once": (True, (0.5,)),
        "drawn anew, 4 times": (True, (0.3, 0.45, 0.6, 0.75)),
        "drawn anew from 0.1 on": (True, (0.1, 0.25, 0.4, 0.55, 0.7)),
    }
    if name in times:
        anew, fractions = times[name]
        with rewinding(parent, seed, fractions, anew=anew):
            yield
    elif name.startswith("at the end"):
        with mock.patch.object(Search, "_take", take_all_at_the_end):
            yield
    elif name == "a step by layer":
        with mock.patch.object(Descent, "update", update_by_layer):
            yield
    else:
        yield


ONE_PLACE = {"w_start": 1.0, "w_scale": 0.01}
SETTINGS: dict[str, dict[str, float]] = {
    "drawn anew from 0.1 on": {"dense_start": 0.1},
    "w from one place": ONE_PLACE,
    "w from nearly one place": {"w_start": 1.0, "w_scale": 0.3},
    "w from one place, t_s = 3": {**ONE_PLACE, "t_s": 3.0},
    "w from one place, t_s = 1": {**ONE_PLACE, "t_s": 1.0},
    "w from one place, w_step = 0.003": {**ONE_PLACE, "w_step": 0.003},
    "at the end, t_s = 3": {"t_s": 3.0},
    "at the end, t_s = 1": {"t_s": 1.0},
    "at the end, t_s = 3, w_step = 0.03": {"t_s": 3.0, "w_step": 0.03},
    "at the end, t_s = 1, w_step = 0.03": {"t_s": 1.0, "w_step": 0.03},
    "at the end, from one place, t_s = 3": {**ONE_PLACE, "t_s": 3.0},
    "at the end, from one place, t_s = 1": {**ONE_PLACE, "t_s": 1.0},
    "w_step = 0.03": {"w_step": 0.03},
    "t_s = 3, w_step = 0.03": {"t_s": 3.0, "w_step": 0.03},
    "t_s = 1, w_step = 0.03": {"t_s": 1.0, "w_step": 0.03},
    "layer_share = 30": {"layer_share": 30.0},
    "layer_share = 100": {"layer_share": 100.0},
    "layer_share = 300": {"layer_share": 300.0},
}

VARIANTS = (
    "as it is",
    "twice as long",
    "back to the start, once",
    "back to the start, 4 times",
    "drawn anew, once",
    "drawn anew, 4 times",
    "drawn anew from 0.1 on",
    "a step by layer",
    "w from nearly one place",
    "w from one place",
    "w from one place, t_s = 3",
    "w from one place, t_s = 1",
    "w from one place, w_step = 0.003",
    "mixed images",
    "at the end",
    "at the end, t_s = 3",
    "at the end, t_s = 1",
    "at the end, t_s = 3, w_step = 0.03",
    "at the end, t_s = 1, w_step = 0.03",
    "at the end, from one place, t_s = 3",
    "at the end, from one place, t_s = 1",
    "w_step = 0.03",
    "t_s = 3, w_step = 0.03",
    "t_s = 1, w_step = 0.03",
    "layer_share = 30",
    "layer_share = 100",
    "layer_share = 300",
)


def main() -> None:
    ask = read_arguments()
    known: dict[str, Any] = json.loads(ask.out.read_text()) if ask.out.exists() else {}
    clock = Clock(ask.time_limit)
    old = ap.load_task("digits", classes=[0, 1, 2, 3, 4])
    for seed in range(ask.first_seed, ask.first_seed + ask.seeds):
        todo = [name for name in ask.variants if f"{ask.parent}, {name}, {seed}" not in known]
        if not todo or not clock.may_start("seed"):
            continue
        with clock.timing("seed"):
            for name, accuracies in measure(ask.parent, todo, old, seed).items():
                known[f"{ask.parent}, {name}, {seed}"] = accuracies
        with writing(ask.out) as temporary:
            temporary.write_text(json.dumps(known, indent=1) + "\n")
    write_table(ask, known)


def measure(
    parent: str, names: list[str], old: ap.Task, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Search in all ways, then retrain every architecture at three learning rates."""
    new = ap.load_task("digits", classes=[5, 6, 7, 8, 9], images=50, seed=seed, split="tuning")
    usual = ap.Recipe.for_transfer(ap.build_parent(parent, new), new).but(steps=RETRAINED)
    rows = {name: {f"{sparsity:g}": [0.0] * 3 for sparsity in SPARSITIES} for name in names}
    places = {}
    for name in names:
        found = search(name, parent, old, seed)
        for sparsity, architecture in zip(SPARSITIES, found, strict=True):
            for place, lr in enumerate((0.1, 0.2, 0.4)):
                run = ap.Retraining(architecture, parent, new, seed, usual.but(lr=lr))
                places[run] = name, f"{sparsity:g}", place
    for run, result in ap.transfer_many(list(places)):
        name, sparsity, place = places[run]
        # what diverges is as bad as can be
        rows[name][sparsity][place] = round(getattr(result, "accuracy", 0.0), 4)
    return rows


def write_table(ask: argparse.Namespace, known: dict[str, Any]) -> None:
    """Print the mean at the rate that suits each cell best, and differences paired by seed."""
    seeds = [
        seed
        for seed in range(ask.first_seed, ask.first_seed + ask.seeds)
        if all(f"{ask.parent}, {name}, {seed}" in known for name in ask.variants)
    ]
    cells = {}
    for name in ask.variants:
        for sparsity in (f"{s:g}" for s in SPARSITIES):
            rows = [known[f"{ask.parent}, {name}, {seed}"][sparsity] for seed in seeds]
            best = max(range(3), key=lambda place: sum(row[place] for row in rows))
            cells[name, sparsity] = [row[best] for row in rows]
    print(f"{ask.parent}, {len(seeds)} seeds from {ask.first_seed} on\n")
    print("| search |", " | ".join(f"{sparsity:g}" for sparsity in SPARSITIES), "| together |")
    print("| --- |" + " --- |" * (len(SPARSITIES) + 1))
    for name in ask.variants:
        line = []
        pairs = [(cells[name, f"{s:g}"], cells["as it is", f"{s:g}"]) for s in SPARSITIES]
        together = [
            [mean(of_seed) for of_seed in zip(*side, strict=True)]
            for side in zip(*pairs, strict=True)
        ]
        for mine, usual in [*pairs, together]:
            if name == "as it is" or len(seeds) < 3:
                line.append(f"{summarise(mine)}")
            else:
                line.append(f"{paired_interval(mine, usual):+.3f}")
        print(f"| {name} |", " | ".join(line), "|", flush=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="mlp")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ap_variants.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
