"""Do the ways to run a step agree on this machine: eager, captured, fused, compiled, side by side?

The tests compare them on a CPU, where nothing is captured and kernels are interpreted. This does it
where they are used. All compute in float32 and with a small learning rate here: a training makes two
networks of a difference in the last digit, the sooner the fewer digits there are. In a search that takes
only a few steps of w, whatever runs it: what stands at the threshold passes on the smallest difference.
It prints a line a check, and exits with status 1 if any of them differs.

    python benchmarks/check_gpu.py --parents vgg11 vgg11_bn resnet20
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from noise import noise
from torch import nn

import aprune as ap
from aprune.descent import Search, draw_w
from aprune.initialise import initialise
from aprune.maths.relaxation import warm_slope
from aprune.methods.protocol import Outcome, Problem
from aprune.training import Curve, choose_device, fit_masked
from aprune.training.engine import EngineName
from aprune.training.fused import FusedUpdate
from aprune.training.network import network_for

STEPS = 12
DENSE = 5  # steps of a search before w moves; the loss after its first step is the last compared
SPARSITIES = (0.01, 0.02)
HALF, FEW = 0.5, 0.98  # removed in a retraining: where little is left, updates read masks first
TOLERANCE = 0.002  # of a loss of 2 to 10


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    print("| parent | what | engine | largest difference from eager losses | architectures | |")
    print("| --- | --- | --- | --- | --- | --- |")
    good = all([check_drift(device), *(check_shares(parent, device) for parent in ask.parents)])
    with in_float32():
        for parent, what, engine in itertools.product(ask.parents, CHECKS, ask.engines):
            loss, same = CHECKS[what](engine, parent, device)
            fine = loss < TOLERANCE
            good = good and fine
            verdict = "agrees" if fine else "DIFFERS"
            print(f"| {parent} | {what} | {engine} | {loss:.2g} | {same} | {verdict} |", flush=True)
    sys.exit(0 if good else 1)


def check_drift(device: torch.device) -> bool:
    """Is the drift that the kernels find in a sample the one that sorting it finds?"""
    from aprune.training import kernels

    model = nn.Linear(2_000, 500, bias=False, device=device)
    generator = torch.Generator(device).manual_seed(0)
    w = torch.randn(model.weight.shape, generator=generator, device=device)  # half of it is off
    method = ap.AP(sparsity=0.99, steps=10, dense_start=0.0)
    search = Search(model, method, {"weight": model.weight}, {"weight": w.clone()}, attached=False)
    fused = FusedUpdate(model, recipe_for(STEPS), mover=search)
    worst = 0.0
    for keep in (0.4, 0.1, 0.01):
        search.w["weight"].detach().copy_(w)
        search.descent.aim(0.1, keep)
        model.weight.grad = None  # without gradients the ratio is w/(1 + w)
        fused.move()
        sample = search.descent._look([w])
        ratios = torch.where(sample > -1, sample / (1 + sample), -torch.inf).clamp(0, 1)
        expected = ratios.sort(descending=True).values[round(keep * len(ratios))].item()
        worst = max(worst, abs(fused._numbers[kernels.DRIFT.value].item() / expected - 1))
    fine = worst < 2**-12
    verdict = "agrees" if fine else "DIFFERS"
    print(f"| linear | drift, from sorting | fused | {worst:.2g} of it | | {verdict} |", flush=True)
    return fine


def check_shares(parent: str, device: torch.device) -> bool:
    """Does every layer move by the mean of its gradients, also where it sees copies of its inputs?"""
    task = noise((3, 32, 32), 200)
    model = network_for(parent, task, device, seed=0, weights=False)
    initialise(model, scheme="he", seed=0)
    chosen = ap.find_connections(model)
    method = ap.AP(sparsity=0.99, steps=10, dense_start=0.0, layer_share=1e-3)
    w = draw_w(method, chosen, seed=0)
    search = Search(model, method, chosen, w, attached=False)
    fused = FusedUpdate(model, recipe_for(STEPS), mover=search, shape=task.shape)
    generator = torch.Generator(device).manual_seed(0)
    for entry in fused._entries.values():  # one sign, so that nothing cancels
        drawn = torch.rand(entry.leaf.shape, generator=generator, device=device)
        entry.leaf.grad = torch.empty_like(entry.leaf).copy_(drawn)
    fused.begin()
    search.descent.aim(0.01, 1.0)
    means, squares = {}, 0.0
    for name, entry in fused._entries.items():
        if entry.w is not None:
            assert entry.leaf.grad is not None
            slope = entry.leaf.grad.float().repeat_interleave(entry.copies, 1)
            slope = slope * entry.theta.detach() * warm_slope(entry.w, method.t_s)
            means[name] = slope.double().mean().item()
            squares += slope.double().square().sum().item()
    alpha = 0.01 / (squares / search.descent.total) ** 0.5
    fused.move()
    scale = max(map(abs, means.values()))
    worst = max(
        abs(fused._shares[place].item() / (1e-3 * alpha) - means[name]) / scale
        for place, name in enumerate(fused._entries)
        if name in means
    )
    verdict = "agrees" if worst < 1e-4 else "DIFFERS"
    print(f"| {parent} | layers that move as a whole | fused | {worst:.2g} of it | | {verdict} |")
    return worst < 1e-4


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Compute everything in float32 for the block, and convolutions in the same way each time."""
    precise = contextlib.nullcontext
    with (
        mock.patch("aprune.training.loop.mixed_precision", lambda device: precise(device)),
        mock.patch("aprune.training.shadow._NARROW", ()),
        torch.backends.cudnn.flags(deterministic=True, allow_tf32=False),
    ):
        yield


def check_retraining(engine: EngineName, parent: str, device: torch.device) -> tuple[float, str]:
    worst = 0.0
    for sparsity in (HALF, FEW):
        ours, plain = (retrain(parent, device, name, sparsity) for name in (engine, "eager"))
        worst = max(worst, difference(ours, plain))
    return worst, ""


def check_search(engine: EngineName, parent: str, device: torch.device) -> tuple[float, str]:
    ours, plain = (search(parent, device, name) for name in (engine, "eager"))
    shared = []
    for sparsity, masks in plain.masks.items():
        both = sum(int((mask & ours.masks[sparsity][name]).sum()) for name, mask in masks.items())
        kept = sum(int(mask.sum()) for mask in masks.values())
        shared.append(f"{both / kept:.3%} shared at {sparsity:g}")
    return difference(ours.curves[0], plain.curves[0], DENSE + 2), ", ".join(shared)


def check_many(engine: EngineName, parent: str, device: torch.device) -> tuple[float, str]:
    """Four, three side by side: the last takes a place that was used before, with other densities."""
    recipe, worst = recipe_for(STEPS), 0.0
    todo = []
    for seed in range(4):
        task = noise((3, 32, 32), 200, seed=seed)
        sparsity = HALF if seed < 3 else FEW
        found = ap.find(parent, task, ap.Random(), sparsity=sparsity, seed=seed, device=device)
        todo.append(ap.Retraining(found, parent, task, seed=seed, recipe=recipe))
    many = ap.transfer_many(todo, lanes=3, engine=engine, device=device, progress=False)
    for one, result in many:
        alone = ap.transfer(
            one.architecture,
            parent,
            one.task,
            seed=one.seed,
            recipe=recipe,
            engine="eager",
            device=device,
            progress=False,
        )
        curve = result.curve if isinstance(result, ap.Result) else None
        worst = max(worst, difference(curve, alone.curve) if curve else float("inf"))
    return worst, ""


ENGINES: tuple[EngineName, ...] = ("captured", "fused", "compiled")
CHECKS: dict[str, Callable[[EngineName, str, torch.device], tuple[float, str]]] = {
    "retraining": check_retraining,
    "search": check_search,
    "four retrainings, three at a time": check_many,
}


def retrain(parent: str, device: torch.device, engine: EngineName, sparsity: float) -> Curve:
    task = noise((3, 32, 32), 200).to(device)
    found = ap.find(parent, task, ap.Random(), sparsity=sparsity, device=device)
    model = network_for(parent, task, device, seed=0, weights=False)
    initialise(model, found.masks(), seed=0)
    recipe = recipe_for(STEPS)
    return fit_masked(model, found.masks(), task, recipe, seed=0, engine=engine, progress=False)


def search(parent: str, device: torch.device, engine: EngineName) -> Outcome:
    task = noise((3, 32, 32), 200).to(device)
    model = network_for(parent, task, device, seed=0, weights=False)
    problem = Problem(
        model,
        tuple(ap.find_connections(model)),
        task,
        SPARSITIES,
        recipe=recipe_for(2 * STEPS),
        seed=0,
        engine=engine,
        progress=False,
    )
    return ap.AP(dense_start=DENSE / (2 * STEPS), w_step=1e-3).search(problem)


def difference(one: Curve, other: Curve, steps: int = STEPS) -> float:
    pairs = zip(one.loss[:steps], other.loss[:steps], strict=True)
    return max(abs(a - b) for a, b in pairs)


def recipe_for(steps: int) -> ap.Recipe:
    return ap.Recipe(steps=steps, lr=0.001, batch=32, schedule="constant")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parents", nargs="+", default=["vgg11", "vgg11_bn", "resnet20"])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
