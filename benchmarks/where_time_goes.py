"""Where does the time of a retraining step go? Every kernel of it, by kind and by name.

One network alone, nine connections in ten at zero, images of noise. Beside the kernels stands what the
step takes by the clock, alone and with others side by side: what is between the two is waiting.

    python benchmarks/where_time_goes.py --parents vgg19 vgg19_bn --batches 50 64 128
"""

import argparse
import contextlib
import re
import time
from collections import Counter

import torch
from noise import noise
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aprune as ap
from aprune.connections import find_connections
from aprune.initialise import initialise
from aprune.training import choose_device
from aprune.training.engine import Level
from aprune.training.fit import Training
from aprune.training.masked import Lane
from aprune.training.network import network_for

# the first whose pattern is found in the name of a kernel
KINDS = {
    "update": r"^(measure|decide|update)",
    "gradient of the weights": r"wgrad",
    "gradient of the inputs": r"dgrad",
    "convolutions, products": r"fprop|conv|gemm|xmma|cutlass|nvjet",
    "other layouts": r"nchw|nhwc|transpose",
    "compiled": r"^triton_",
    "pooling": r"pool",
    "copies": r"memcpy|memset|copy|fill",
}
WARM_UP, SEEN = 12, 10  # steps
DENSITY = 0.1


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    for parent in ask.parents:
        for batch in ask.batches:
            show(parent, batch, ask, device)


def show(parent: str, batch: int, ask: argparse.Namespace, device: torch.device) -> None:
    """Print the tables of one parent and batch."""
    task = noise((3, ask.side, ask.side), max(batch, 100)).to(device)
    with contextlib.ExitStack() as stack:
        trainings = [
            begin(parent, batch, task, seed, ask.engine, device, stack) for seed in range(ask.lanes)
        ]
        alone = seconds(trainings[:1], ask.steps, device)
        together = seconds(trainings, ask.steps, device) / len(trainings)
        kernels, calls = look(trainings[0], device)
    busy = sum(kernels.values())
    print(f"\n{parent}, batches of {batch}: {1e3 * alone:.3f} ms a step alone,", end=" ")
    print(f"{1e3 * together:.3f} ms each with {ask.lanes} side by side;", end=" ")
    print(f"{sum(calls.values()):.0f} kernels that take {busy:.3f} ms in all\n")
    kinds: Counter[str] = Counter()
    for name, ms in kernels.items():
        kinds[kind_of(name)] += ms
    print("| kind | ms | share |\n| --- | ---: | ---: |")
    for kind, ms in kinds.most_common():
        print(f"| {kind} | {ms:.3f} | {ms / busy:.2f} |")
    print("\n| kernel | times a step | ms |\n| --- | ---: | ---: |")
    for name, ms in kernels.most_common(ask.top):
        print(f"| `{name[:90]}` | {calls[name]:.1f} | {ms:.4f} |", flush=True)


def begin(
    parent: str,
    batch: int,
    task: ap.Task,
    seed: int,
    engine: Level,
    device: torch.device,
    stack: contextlib.ExitStack,
) -> Training:
    """Return a retraining that has taken its first steps."""
    model = network_for(parent, task, device, seed=seed, weights=False)
    masks = draw_masks(model, seed)
    initialise(model, masks, seed=seed)
    recipe = ap.Recipe.for_transfer(model, task).but(steps=100_000, batch=batch, lr=1e-3)
    training = stack.enter_context(Lane(model, engine=engine).run(masks, task, recipe, seed=seed))
    for _ in range(WARM_UP):
        training.advance()
    return training


def draw_masks(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    return {
        name: torch.rand(weight.shape, generator=generator, device=weight.device) < DENSITY
        for name, weight in find_connections(model).items()
    }


def seconds(trainings: list[Training], steps: int, device: torch.device) -> float:
    """Return how long a step of all of them takes."""
    cuda = device.type == "cuda"
    streams = [torch.cuda.Stream(device) if cuda else None for _ in trainings]
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        for training, stream in zip(trainings, streams, strict=True):
            with torch.cuda.stream(stream):
                training.advance()
    if cuda:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / steps


def look(training: Training, device: torch.device) -> tuple[Counter[str], Counter[str]]:
    """Return the milliseconds of every kernel in a step, and how often it is called."""
    cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        for _ in range(SEEN):
            training.advance()
        if cuda:
            torch.cuda.synchronize(device)
    kernels: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in seen.key_averages():
        took = event.self_device_time_total if cuda else event.self_cpu_time_total
        if took > 0:
            kernels[event.key] += took / 1e3 / SEEN
            calls[event.key] += event.count / SEEN
    return kernels, calls


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.I)), "rest")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parents", nargs="+", default=["vgg19", "vgg19_bn"])
    parser.add_argument("--batches", type=int, nargs="+", default=[50, 64, 128])
    parser.add_argument("--lanes", type=int, default=8, help="networks side by side")
    parser.add_argument("--steps", type=int, default=100, help="to be timed")
    parser.add_argument("--top", type=int, default=25, help="kernels to be named")
    parser.add_argument("--side", type=int, default=32, help="pixels of an image")
    parser.add_argument("--engine", default="compiled")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
