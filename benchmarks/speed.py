"""How long does a step take, what does the search add to it, and how many retrainings fit in a minute?

Four sections, of which `--what` chooses: `steps` times one training step of aprune and of others side by
side, `growth` the update and the whole step of a search by the number of connections, `retraining` whole
retrainings, and `cpu` a step on one thread. Images are noise in the shape of CIFAR-10's. A cell that
fails, for want of memory say, becomes a row with the reason, and the others go on.

    python benchmarks/speed.py --parents vgg19 resnet50 --batches 128 512

prints tables and writes all numbers to `benchmarks/results/h200.json`.
"""

import argparse
import contextlib
import gc
import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils.flop_counter import FlopCounterMode

import aprune as ap
from aprune.connections import attach_masks
from aprune.files import writing
from aprune.initialise import initialise
from aprune.methods.ap import _draw_w
from aprune.methods.attached import Search
from aprune.parents.vgg import VGG
from aprune.tasks import Augment
from aprune.training import Hook, KeepMasked, choose_device, evaluate
from aprune.training.batch import draw_batches
from aprune.training.device import one_thread, place
from aprune.training.engine import Engine
from aprune.training.fit import _Loop
from aprune.training.fused import FusedUpdate, can_fuse
from aprune.training.network import network_for
from aprune.training.update import PlainUpdate

Row = dict[str, Any]
Step = Callable[[], object]

SEARCH = ap.AP(sparsity=0.9, steps=1_000, dense_start=0.3)
# A step of that search at which connections go, but few have gone: a network that has just lost most of
# them computes with zeros, for which a card needs less power and so runs faster.
EARLY = 310
KEPT = 0.1  # fraction of the connections that the pruned rivals leave
WARM_UP = 8  # steps; the engine takes three by itself before it captures one
LAYERS = 4  # square ones, of the networks that grow
CLASSES = 10
CPU_KINDS = ("dense, eager", "aprune search, plain path")


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    report: dict[str, Any] = {
        "machine": describe_machine(device),
        "command": shlex.join(["python", *sys.argv]),
    }
    for name in ask.what:
        report[name] = []
        print(f"\n## {name}\n\n{table_head(COLUMNS[name])}", flush=True)
        for row in MEASURES[name](ask, device):
            print(table_line(row, COLUMNS[name]), flush=True)
            report[name].append(row)
            write_report(ask.out, report)
        if name == "steps":
            print_ratios(report[name])


# One step of each kind, on a parent


def measure_steps(ask: argparse.Namespace, device: torch.device) -> Iterable[Row]:
    task, peak = noise((3, 32, 32), 2_000).to(device), matmul_peak(device)
    for parent, batch, what in itertools.product(ask.parents, ask.batches, ask.kinds):
        row: Row = {"parent": parent, "batch": batch, "what": what}
        attempt(row, time_kind, KINDS[what], parent, task, batch, ask.repeats)
        if "ms" in row:
            row["images_per_s"] = rounded(1e3 * batch / row["ms"])
            flops = 3 * forward_flops(parent, task, batch)
            row["peak_fraction"] = rounded(flops / row["ms"] / 1e9 / peak) if peak else None
        yield row


@dataclass(frozen=True)
class Kind:
    """A way to train: what is done to a network for it, and how its steps are run."""

    prepare: Callable[[nn.Module], list[Hook]]
    fused: bool = False
    compiled: bool = False
    captured: bool = False


def time_kind(kind: Kind, parent: str, task: ap.Task, batch: int, repeats: int) -> Row:
    device, recipe = task.train_labels.device, recipe_of(batch)
    with contextlib.ExitStack() as stack:
        model = network_for(parent, task, device, seed=0, weights=False)
        initialise(model, scheme="he", seed=0)
        hooks = kind.prepare(model)
        if kind.fused:
            update = stack.enter_context(fused_update(model, hooks[0], task, recipe))
        else:
            update = PlainUpdate(model, recipe)
        if kind.compiled:
            stack.callback(torch.compiler.reset)
            model = torch.compile(model, dynamic=False)
        loop = _Loop(model, task, recipe, hooks, update)
        run = Engine(loop.step, device).run if kind.captured else loop.step
        return timed(step_of_training(loop, task, run), repeats, device)


def recipe_of(batch: int) -> ap.Recipe:
    return ap.Recipe(steps=SEARCH.steps, lr=0.01, batch=batch, schedule="constant")


def step_of_training(loop: _Loop, task: ap.Task, run: Step) -> Step:
    """Return all that a training does for one step: a new batch, the hooks' numbers, the step."""
    draws = itertools.cycle(list(draw_batches(task, loop.recipe.batch, 32, seed=0)))

    def step() -> None:
        loop.load(next(draws), loop.recipe.lr)
        for hook in loop.hooks:
            hook.before(EARLY)
        loop.enter(tuple(hook.phase for hook in loop.hooks))
        run()

    return step


def leave_dense(model: nn.Module) -> list[Hook]:  # noqa: ARG001
    return []


def start_search(model: nn.Module, *, parametrised: bool = False) -> list[Hook]:
    connections = ap.find_connections(model)
    w = _draw_w(SEARCH, connections, seed=0)
    if parametrised:
        attach_masks(model, w, SEARCH.t_l, SEARCH.t_s)
    search = Search(model, SEARCH, connections, w)
    search._enter("descent")
    return [search]


def fused_update(
    model: nn.Module, search: Search, task: ap.Task, recipe: ap.Recipe
) -> contextlib.AbstractContextManager[FusedUpdate]:
    device = task.train_labels.device
    if not can_fuse(device):
        raise RuntimeError(f"no Triton runs on {device}; on a CPU, TRITON_INTERPRET=1 stands in")
    copies = model.copies(task.shape) if type(model) is VGG else 1
    return FusedUpdate(model, recipe, mover=search, copies=copies).in_place()


class SoftMask(nn.Module):
    """θ∘σ(t_l·w) as anybody would write it: autograd keeps what it needs for both gradients."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, theta: Tensor) -> Tensor:
        return theta * torch.sigmoid(SEARCH.t_l * self.w)


def mask_by_autograd(model: nn.Module) -> list[Hook]:
    for name, w in _draw_w(SEARCH, ap.find_connections(model), seed=0).items():
        parametrise(model, name, SoftMask(w))
    return []


def prune_at_random(model: nn.Module) -> list[Hook]:
    device = next(model.parameters()).device
    # pruning views each weight as a vector, which one with its channels last is not
    model.to(memory_format=torch.contiguous_format)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            prune.random_unstructured(module, "weight", amount=1 - KEPT)
    place(model, device)
    return []


class KeepTop(torch.autograd.Function):
    """1 for the largest scores of a layer by magnitude, else 0; the gradient goes straight through."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:  # noqa: ARG004
        size = scores.abs()
        kept = max(1, round(KEPT * size.numel()))
        least = size.flatten().topk(kept, sorted=False).values.min()  # quicker than a whole sort
        return (size >= least).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad


class EdgePopup(nn.Module):
    """Ramanujan et al. 2020, "What's hidden in a randomly weighted neural network?"."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * KeepTop.apply(self.scores)


def pop_edges_up(model: nn.Module) -> list[Hook]:
    connections = ap.find_connections(model)
    model.requires_grad_(False)
    for name, weight in connections.items():
        bound = 1 / math.sqrt(weight[0].numel())
        scores = torch.empty_like(weight, requires_grad=False).uniform_(-bound, bound)
        parametrise(model, name, EdgePopup(scores))
    return []


def parametrise(model: nn.Module, name: str, shown: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    # unsafe leaves out a trial run
    parametrize.register_parametrization(model.get_submodule(owner), leaf, shown, unsafe=True)


KINDS = {
    "dense, eager": Kind(leave_dense),
    "dense, compiled": Kind(leave_dense, compiled=True),
    "dense, captured": Kind(leave_dense, compiled=True, captured=True),
    "aprune search": Kind(start_search, fused=True, captured=True),
    "aprune search, compiled": Kind(start_search, fused=True, compiled=True, captured=True),
    "aprune search, plain path": Kind(partial(start_search, parametrised=True), captured=True),
    "autograd through the mask, eager": Kind(mask_by_autograd),
    "torch.nn.utils.prune, eager": Kind(prune_at_random),
    "edge-popup, eager": Kind(pop_edges_up),
}


def print_ratios(rows: Sequence[Row]) -> None:
    dense, search, autograd = "dense, captured", "aprune search", "autograd through the mask, eager"
    pairs = {
        "search ÷ dense captured": (search, dense, "ms"),
        "search compiled ÷ dense captured": (f"{search}, compiled", dense, "ms"),
        "memory: search ÷ dense captured": (search, dense, "peak_gib"),
        "autograd eager ÷ search": (autograd, search, "ms"),
    }
    cells = {(row["parent"], row["batch"], row["what"]): row for row in rows}
    columns = ("parent", "batch", *pairs)
    print(f"\n{table_head(columns)}")
    for parent, batch in dict.fromkeys((row["parent"], row["batch"]) for row in rows):
        line: Row = {"parent": parent, "batch": batch}
        for name, (above, below, field) in pairs.items():
            values = [cells.get((parent, batch, what), {}).get(field) for what in (above, below)]
            line[name] = values[0] / values[1] if all(values) else None
        print(table_line(line, columns), flush=True)


# The update, by the number of connections


def measure_growth(ask: argparse.Namespace, device: torch.device) -> Iterable[Row]:
    copy = copy_bandwidth(device)
    for connections, what in itertools.product(ask.connections, ("update alone", "whole step")):
        side = max(64, round(math.sqrt(connections / LAYERS) / 64) * 64)
        row: Row = {"connections": LAYERS * side**2 + CLASSES * side, "what": what}
        attempt(row, time_growth, side, what == "update alone", device, ask.repeats)
        if "ms" in row:
            row["ns_per_connection"] = rounded(row["ms"] * 1e6 / row["connections"])
        if "bytes_per_connection" in row:
            moved = row["bytes_per_connection"] * row["connections"]
            row["tb_per_s"] = rounded(moved / row["ms"] / 1e9)
            row["copy_tb_per_s"] = copy
        yield row


def time_growth(side: int, alone: bool, device: torch.device, repeats: int) -> Row:
    task, recipe = noise((1, 1, side), 256, moving=False).to(device), recipe_of(64)
    model = square_network(side, device)
    hooks = start_search(model)
    with fused_update(model, hooks[0], task, recipe) as update:
        loop = _Loop(model, task, recipe, hooks, update)
        if not alone:
            run = Engine(loop.step, device).run
            return timed(step_of_training(loop, task, run), repeats, device)
        step_of_training(loop, task, loop.step)()  # leaves gradients in place
        times = timed(Engine(update.move, device).run, repeats, device)
        return times | {"bytes_per_connection": bytes_moved(model[1].weight)}


def square_network(side: int, device: torch.device) -> nn.Sequential:
    with device:
        layers = [(nn.Linear(side, side), nn.ReLU()) for _ in range(LAYERS)]
        return nn.Sequential(nn.Flatten(), *itertools.chain(*layers), nn.Linear(side, CLASSES))


def bytes_moved(shadow: Tensor) -> int:
    """Count what an update reads and writes for one connection, whose gradient is like its shadow.

    Read: the gradient twice, θ and w twice, the momentum. Written: θ, w, the momentum, the shadow.
    """
    narrow, wide = shadow.element_size(), 4
    return (2 * narrow + 4 * wide + wide) + (3 * wide + narrow)


# Whole retrainings


def measure_retraining(ask: argparse.Namespace, device: torch.device) -> Iterable[Row]:
    task = noise((3, 32, 32), 500).to(device)
    recipe = ap.Recipe(steps=ask.steps, lr=0.01, batch=64, schedule="constant")
    for parent, what in itertools.product(ask.retrained, RETRAININGS):
        retrain = RETRAININGS[what]
        runs = ask.runs * (retrain.keywords["lanes"] if isinstance(retrain, partial) else 1)
        row: Row = {"parent": parent, "what": what, "steps": ask.steps, "runs": runs}
        attempt(row, time_retraining, retrain, parent, task, recipe, runs)
        yield row


def time_retraining(
    retrain: Callable[..., None], parent: str, task: ap.Task, recipe: ap.Recipe, runs: int
) -> Row:
    device = task.train_labels.device
    architecture = ap.find(parent, task, ap.Random(), sparsity=1 - KEPT, device=device)
    retrain(architecture, parent, task, recipe.but(steps=5), range(1))  # what happens only once
    begin = time.perf_counter()
    retrain(architecture, parent, task, recipe, range(runs))
    seconds = (time.perf_counter() - begin) / runs
    return {"s_per_run": rounded(seconds), "runs_per_minute": rounded(60 / seconds)}


def retrain_eagerly(
    architecture: ap.Architecture,
    parent: str,
    task: ap.Task,
    recipe: ap.Recipe,
    seeds: Iterable[int],
) -> None:
    device, masks = task.train_labels.device, architecture.masks()
    for seed in seeds:
        model = network_for(parent, task, device, seed=seed, weights=False)
        initialise(model, masks, seed=seed)
        hooks, update = [KeepMasked(model, masks)], PlainUpdate(model, recipe)
        loop = _Loop(model, task, recipe, hooks, update)
        for draw in draw_batches(task, recipe.batch, recipe.steps, seed=seed):
            loop.load(draw, recipe.lr)
            loop.step()
        evaluate(model, task)


def retrain_with_transfer(
    architecture: ap.Architecture,
    parent: str,
    task: ap.Task,
    recipe: ap.Recipe,
    seeds: Iterable[int],
) -> None:
    device = task.train_labels.device
    for seed in seeds:
        ap.transfer(
            architecture, parent, task, seed=seed, recipe=recipe, device=device, progress=False
        )


def retrain_together(
    architecture: ap.Architecture,
    parent: str,
    task: ap.Task,
    recipe: ap.Recipe,
    seeds: Iterable[int],
    *,
    lanes: int,
    fuse: bool = False,
) -> None:
    todo = [ap.Retraining(architecture, parent, task, seed=seed, recipe=recipe) for seed in seeds]
    where = task.train_labels.device
    for _ in ap.transfer_many(todo, lanes=lanes, fuse=fuse, device=where, progress=False):
        pass


RETRAININGS: dict[str, Callable[..., None]] = {
    "one by one, eager PyTorch": retrain_eagerly,
    "aprune.transfer": retrain_with_transfer,
    **{
        f"transfer_many, {lanes} at a time{', fused' if fuse else ''}": partial(
            retrain_together, lanes=lanes, fuse=fuse
        )
        for fuse, lanes in itertools.product((False, True), (1, 2, 4, 16))
    },
}


# A step on one thread of a CPU


def measure_cpu(ask: argparse.Namespace, device: torch.device) -> Iterable[Row]:  # noqa: ARG001
    dense, search = ({"parent": "mlp", "batch": 64, "what": what} for what in CPU_KINDS)
    for row in (dense, search):
        attempt(row, time_on_cpu, KINDS[row["what"]], 10 * ask.repeats)
        if "ms" in dense and "ms" in row:
            row["ratio"] = rounded(row["ms"] / dense["ms"])
        yield row


def time_on_cpu(kind: Kind, repeats: int) -> Row:
    with one_thread():
        return time_kind(kind, "mlp", ap.load_task("digits"), 64, repeats)


# Measuring


def attempt(row: Row, work: Callable[..., Row], *given: Any) -> None:
    """Fill in a row, or why it could not be; leave the device empty for the next."""
    try:
        row |= work(*given)
    except Exception as error:
        row["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    gc.collect()
    if torch.cuda.is_available():
        # after a capture that failed its stream is still the current one, and memory may be held
        torch.cuda.set_stream(torch.cuda.default_stream())
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def timed(step: Step, repeats: int, device: torch.device) -> Row:
    """Return median and quartiles of the time of a step, and the most memory that it holds."""
    warm_up(step, device)
    times = times_on_gpu(step, repeats) if device.type == "cuda" else times_on_cpu(step, repeats)
    low, middle, high = (rounded(value) for value in np.percentile(times, (25, 50, 75)))
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {
        "ms": middle,
        "ms_low": low,
        "ms_high": high,
        "peak_gib": None if memory is None else rounded(memory),
    }


def warm_up(step: Step, device: torch.device) -> None:
    """Compile, capture, and keep on until the clock of a card that stood idle has risen."""
    if device.type != "cuda":
        step()
        return
    begin = time.perf_counter()
    for number in itertools.count():
        if number >= WARM_UP and time.perf_counter() - begin > 0.3:
            return
        if number == 2:  # compilers try things out before, captures come after
            torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()


def times_on_gpu(step: Step, repeats: int) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]


def times_on_cpu(step: Step, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


@cache
def matmul_peak(device: torch.device, side: int = 8_192) -> float | None:
    """Return the teraflops of a large product of matrices in bfloat16."""
    if device.type != "cuda":
        return None
    left, right, out = torch.randn(3, side, side, device=device, dtype=torch.bfloat16)
    ms = timed(lambda: torch.mm(left, right, out=out), 30, device)["ms"]
    return rounded(2 * side**3 / ms / 1e9)


@cache
def copy_bandwidth(device: torch.device, size: int = 2**32) -> float | None:
    """Return the terabytes a second that a large copy reads and writes."""
    if device.type != "cuda":
        return None
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    return rounded(2 * size / timed(lambda: target.copy_(source), 30, device)["ms"] / 1e9)


def forward_flops(parent: str, task: ap.Task, batch: int) -> int:
    with torch.device("meta"):
        model = ap.build_parent(parent, task).eval()
        images = torch.empty(batch, *task.shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter.get_total_flops()


def noise(shape: tuple[int, int, int], images: int, *, moving: bool = True) -> ap.Task:
    """Noise in ten classes, shifted and mirrored like CIFAR-10 if `moving`."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % CLASSES
    augment = Augment(flip=True, shift=4) if moving else Augment()
    names = tuple(f"class {k}" for k in range(CLASSES))
    return ap.Task("noise", pixels, labels, pixels, labels, names, augment, {"data": "noise"})


# Writing it down


def describe_machine(device: torch.device) -> dict[str, str | float | None]:
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    return {
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "bf16_tflops": matmul_peak(device),
        "copy_tb_per_s": copy_bandwidth(device),
    }


def write_report(path: Path, report: dict[str, Any]) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n")


def table_head(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|"


def table_line(row: Row, columns: Sequence[str]) -> str:
    cells = [show(row[name]) if name in row else "" for name in columns]
    if "failed" in row:
        cells[cells.index("")] = f"failed: {row['failed']}"
    return f"| {' | '.join(cells)} |"


def show(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


MEASURES = {
    "steps": measure_steps,
    "growth": measure_growth,
    "retraining": measure_retraining,
    "cpu": measure_cpu,
}
TIMES = ("ms", "ms_low", "ms_high")
PER_CONNECTION = ("ns_per_connection", "bytes_per_connection", "tb_per_s", "copy_tb_per_s")
COLUMNS = {
    "steps": ("parent", "batch", "what", *TIMES, "images_per_s", "peak_gib", "peak_fraction"),
    "growth": ("connections", "what", *TIMES, *PER_CONNECTION, "peak_gib"),
    "retraining": ("parent", "what", "steps", "runs", "s_per_run", "runs_per_minute"),
    "cpu": ("parent", "batch", "what", *TIMES, "ratio"),
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="+", default=list(MEASURES), choices=MEASURES)
    parser.add_argument("--parents", nargs="+", default=["vgg19", "vgg19_bn", "resnet50"])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 512, 1024])
    parser.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="of step to time"
    )
    parser.add_argument(
        "--connections", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9], help="to grow by"
    )
    parser.add_argument("--retrained", nargs="+", default=["vgg19", "resnet20"], help="parents")
    parser.add_argument("--steps", type=int, default=400, help="of a retraining")
    parser.add_argument("--runs", type=int, default=3, help="retrainings of each kind")
    parser.add_argument("--repeats", type=int, default=30, help="of every step that is timed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
