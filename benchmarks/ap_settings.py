"""Which settings of AP's search find the better architectures?

Judged on training images of the new task that are not among those it learns from, and on classes of
seeds that no other table uses: settings may be chosen by it. Searches go through all sparsities at once.

    python benchmarks/ap_settings.py --vary t_s=3 --vary epochs=40,w_step=0.005 --vary imp:steps=1953

goes on where it was interrupted; what was measured stays in the JSON file. Two names are no settings of
AP: `epochs=`, the length of the search, and `fan=`, which puts w in an order by layer (see `by_fan`).
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import aprune as ap
from aprune.cli.methods import make_method
from aprune.descent import Settings, draw_w
from aprune.files import writing
from aprune.maths.statistics import paired_interval, summarise
from aprune.parents import build_parent
from aprune.progress import Clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="vgg19_bn")
    parser.add_argument("--old", default="cifar10", help="task of the search")
    parser.add_argument("--new", default="cifar100", help="task of the retraining")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.95, 0.99])
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        help="NAME=VALUE,… of AP, or of METHOD:NAME=VALUE,…; also epochs= and fan=",
    )
    parser.add_argument(
        "--methods", nargs="*", default=["ap", "imp"], help="with their own settings"
    )
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2, help="retrainings of an architecture")
    parser.add_argument("--size", type=int, help="of the images, if they are not left as they are")
    parser.add_argument("--search-steps", type=int)
    parser.add_argument("--steps", type=int, help="of a retraining")
    parser.add_argument("--out", type=Path, default=Path("ap_settings.json"))
    parser.add_argument("--time-limit", type=float)
    ask = parser.parse_args()
    known: dict[str, Any] = json.loads(ask.out.read_text()) if ask.out.exists() else {}
    clock = Clock(ask.time_limit)
    for seed in range(ask.first_seed, ask.first_seed + ask.seeds):
        names = [n for n in [*ask.methods, *ask.vary] if f"{ask.parent} {n} {seed}" not in known]
        if names and clock.may_start("seed"):
            with clock.timing("seed"):
                for name, row in measure(ask, names, seed).items():
                    known[f"{ask.parent} {name} {seed}"] = row
            with writing(ask.out) as temporary:
                temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
    if known:
        write_table(ask, known)


def measure(ask: argparse.Namespace, names: list[str], seed: int) -> dict[str, dict[str, Any]]:
    """Search with all settings, then retrain everything together."""
    digits = ask.old == "digits"
    old = ap.load_task(ask.old, classes=list(range(5)) if digits else None, size=ask.size)
    classes = list(range(5, 10)) if digits else ask.classes
    new = ap.load_task(
        ask.new, classes=classes, images=ask.images, seed=seed, size=ask.size, split="tuning"
    )
    retraining = ap.Recipe.for_transfer(build_parent(ask.parent, new), new).but(steps=ask.steps)
    rows: dict[str, dict[str, Any]] = {}
    places: dict[ap.Retraining, tuple[str, str]] = {}
    for name in names:
        begin = time.perf_counter()
        found = search(ask, name, old, seed)
        rows[name] = {
            "seconds": round(time.perf_counter() - begin, 1),
            "accuracy": {f"{sparsity:g}": [] for sparsity in ask.sparsity},
            "layers": [
                {layer.name: [layer.density, *dead(arch, layer.name)] for layer in arch.layers()}
                for arch in found
            ],
        }
        for sparsity, architecture in zip(ask.sparsity, found, strict=True):
            for number in range(ask.repeat):
                again = seed + 1_000 * number
                run = ap.Retraining(architecture, ask.parent, new, again, retraining)
                places[run] = name, f"{sparsity:g}"
    for done, result in ap.transfer_many(list(places)):
        name, sparsity = places[done]
        accuracy = getattr(result, "accuracy", float("nan"))  # nan if it diverged
        rows[name]["accuracy"][sparsity].append(round(accuracy, 4))
    return rows


def search(ask: argparse.Namespace, name: str, old: ap.Task, seed: int) -> list[ap.Architecture]:
    who, _, given = name.rpartition(":") if "=" in name else (name, "", "")
    settings = given.split(",") if given else []
    own = [setting for setting in settings if not setting.startswith(("epochs=", "fan="))]
    method = make_method(who or "ap", own)
    recipe = ap.Recipe.for_search(build_parent(ask.parent, old), old).but(steps=ask.search_steps)
    with contextlib.ExitStack() as stack:
        for setting in set(settings) - set(own):
            what, _, value = setting.partition("=")
            if what == "fan":
                stack.enter_context(by_fan(float(value)))
            else:
                steps = round(float(value) * len(old.train_labels) / recipe.batch)
                recipe = recipe.but(steps=steps)
        return ap.find(ask.parent, old, method, sparsity=ask.sparsity, seed=seed, recipe=recipe)


@contextlib.contextmanager
def by_fan(power: float) -> Iterator[None]:
    """Let layers of many inputs go first: where w are ordered by |N|·inputs^(−power/2).

    A power of 1 is the order of He's weights, 0 the usual one. Only the order is another: the numbers
    themselves are those that would be drawn, each of them in another place.
    """

    def draw(
        method: Settings, connections: Mapping[str, nn.Parameter], seed: int
    ) -> dict[str, Tensor]:
        w = draw_w(method, connections, seed)
        flat = torch.cat([draw.flatten() for draw in w.values()])
        wanted = torch.cat(
            [draw.flatten() * draw[0].numel() ** (-power / 2) for draw in w.values()]
        )
        places = wanted.argsort(stable=True)
        flat[places] = flat.sort().values
        sizes = [draw.numel() for draw in w.values()]
        for draw, part in zip(w.values(), flat.split(sizes), strict=True):
            draw.copy_(part.view_as(draw))
        return w

    with (
        mock.patch("aprune.methods.ap.draw_w", draw),
        mock.patch("aprune.descent.search.draw_w", draw),
    ):
        yield


def dead(architecture: ap.Architecture, name: str) -> tuple[float, ...]:
    """Return which part of the units have no input, and which part of the inputs lead nowhere."""
    mask = architecture.mask(name)
    pairs = mask.flatten(2).any(-1) if mask.dim() > 2 else mask
    return tuple(1 - pairs.any(dim).float().mean().item() for dim in (1, 0))


def write_table(ask: argparse.Namespace, known: dict[str, Any]) -> None:
    """Print the mean of the seeds that all settings have, and what is ahead of the first by how much."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for key, row in known.items():
        parent, name, seed = key.split(" ")
        if parent == ask.parent and name in (*ask.methods, *ask.vary):
            rows.setdefault(name, {})[seed] = row
    seeds = sorted(set.intersection(*(set(of_one) for of_one in rows.values())), key=int)
    first = next(iter(rows))
    print(f"\n{ask.parent}, seeds {', '.join(seeds)}\n")
    print("| settings |", " | ".join(f"{sparsity:g}" for sparsity in ask.sparsity), "| search, s |")
    print("| --- |" + " --- |" * (len(ask.sparsity) + 1))
    means = {
        name: [
            [mean(of_one[seed]["accuracy"][f"{sparsity:g}"]) for seed in seeds]
            for sparsity in ask.sparsity
        ]
        for name, of_one in rows.items()
    }
    for name, of_one in rows.items():
        seconds = mean(of_one[seed]["seconds"] for seed in seeds)
        print(f"| {name} |", " | ".join(f"{summarise(cell)}" for cell in means[name]), end="")
        print(f" | {seconds:.0f} |", flush=True)
    for name in rows:
        if name != first and len(seeds) > 2:
            pairs = zip(means[name], means[first], strict=True)
            cells = [f"{paired_interval(mine, usual):+.3f}" for mine, usual in pairs]
            print(f"| {name} − {first} |", " | ".join(cells), "| |", flush=True)


if __name__ == "__main__":
    main()
