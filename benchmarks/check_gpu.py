"""Do the ways to run a step agree on this machine: captured, fused, and several side by side?

The tests compare them on a CPU, where nothing is captured and kernels are interpreted. This does it
where they are used. Losses are compared over a few steps, before rounding has grown into a path of
its own. It prints a line a check, and exits with status 1 if any of them differs.

    python benchmarks/check_gpu.py --parents vgg11 vgg11_bn resnet20
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from noise import noise

import aprune as ap
from aprune.initialise import initialise
from aprune.methods.protocol import Outcome
from aprune.training import Curve, choose_device, fit_masked
from aprune.training.engine import Engine
from aprune.training.fused import can_fuse
from aprune.training.network import network_for

STEPS = 24
TOLERANCE = 0.02  # of a loss of about 2; bfloat16 has three digits


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    print("| parent | what | largest difference of the losses | architectures | |")
    print("| --- | --- | --- | --- | --- |")
    good = True
    for parent in ask.parents:
        for what, check in CHECKS.items():
            if "fused" in what and not can_fuse(device):
                print(f"| {parent} | {what} | – | – | no Triton here |")
                continue
            loss, same = check(parent, device)
            fine = loss < TOLERANCE
            good = good and fine
            verdict = "agrees" if fine else "DIFFERS"
            print(f"| {parent} | {what} | {loss:.2g} | {same} | {verdict} |", flush=True)
    sys.exit(0 if good else 1)


def check_capture(parent: str, device: torch.device) -> tuple[float, str]:
    with eagerly():
        plain = retrain(parent, device)
    return difference(retrain(parent, device), plain), ""


def check_fused_retraining(parent: str, device: torch.device) -> tuple[float, str]:
    return difference(retrain(parent, device, fuse=True), retrain(parent, device)), ""


def check_fused_search(parent: str, device: torch.device) -> tuple[float, str]:
    fused, plain = (search(parent, device, fuse=fuse) for fuse in (True, False))
    shared = []
    for sparsity, masks in plain.masks.items():
        both = sum(int((mask & fused.masks[sparsity][name]).sum()) for name, mask in masks.items())
        kept = sum(int(mask.sum()) for mask in masks.values())
        shared.append(f"{both / kept:.2%} shared at {sparsity:g}")
    return difference(fused.curves[0], plain.curves[0]), ", ".join(shared)


def check_many(parent: str, device: torch.device, *, fuse: bool = False) -> tuple[float, str]:
    """Four with different seeds, three side by side: the last takes a place that was used before."""
    recipe, worst = recipe_for(STEPS), 0.0
    todo = []
    for seed in range(4):
        task = noise((3, 32, 32), 200, seed=seed)
        found = ap.find(parent, task, ap.Random(), sparsity=0.5, seed=seed, device=device)
        todo.append(ap.Retraining(found, parent, task, seed=seed, recipe=recipe))
    for one, result in ap.transfer_many(todo, lanes=3, fuse=fuse, device=device, progress=False):
        alone = ap.transfer(
            one.architecture,
            parent,
            one.task,
            seed=one.seed,
            recipe=recipe,
            device=device,
            progress=False,
        )
        curve = result.curve if isinstance(result, ap.Result) else None
        worst = max(worst, difference(curve, alone.curve) if curve else float("inf"))
    return worst, ""


def check_many_fused(parent: str, device: torch.device) -> tuple[float, str]:
    return check_many(parent, device, fuse=True)


CHECKS: dict[str, Callable[[str, torch.device], tuple[float, str]]] = {
    "captured, against eager": check_capture,
    "fused retraining, against plain": check_fused_retraining,
    "fused search, against plain": check_fused_search,
    "transfer_many, against transfer": check_many,
    "transfer_many fused, against transfer": check_many_fused,
}


@contextmanager
def eagerly() -> Iterator[None]:
    """Let the engine capture nothing for the block."""
    run = Engine.run
    Engine.run = lambda self, phase=None: self._step()  # type: ignore[method-assign, assignment]  # noqa: ARG005
    try:
        yield
    finally:
        Engine.run = run  # type: ignore[method-assign]


def retrain(parent: str, device: torch.device, *, fuse: bool = False) -> Curve:
    task = noise((3, 32, 32), 200).to(device)
    found = ap.find(parent, task, ap.Random(), sparsity=0.5, device=device)
    model = network_for(parent, task, device, seed=0, weights=False)
    initialise(model, found.masks(), seed=0)
    return fit_masked(
        model, found.masks(), task, recipe_for(STEPS), seed=0, progress=False, fuse=fuse
    )


def search(parent: str, device: torch.device, *, fuse: bool) -> Outcome:
    task = noise((3, 32, 32), 200).to(device)
    model = network_for(parent, task, device, seed=0, weights=False)
    names = list(ap.find_connections(model))
    recipe = recipe_for(2 * STEPS)
    return ap.AP(dense_start=0.2).search(
        model, names, task, (0.2, 0.5), recipe=recipe, seed=0, progress=False, fuse=fuse
    )


def difference(one: Curve, other: Curve) -> float:
    pairs = zip(one.loss[:STEPS], other.loss[:STEPS], strict=True)
    return max(abs(a - b) for a, b in pairs)


def recipe_for(steps: int) -> ap.Recipe:
    return ap.Recipe(steps=steps, lr=0.01, batch=32, schedule="constant")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parents", nargs="+", default=["vgg11", "vgg11_bn", "resnet20"])
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
