"""How long does a step take, what does the search add to it, and how many retrainings fit in a minute?

Four sections, of which `--what` chooses: `steps` times one training step of aprune and of others side by
side, `growth` the update and the whole step of a search by the number of connections, `retraining` whole
retrainings, and `cpu` a step on one thread. Images are noise in the shape of CIFAR-10's. A cell that
fails, for want of memory say, becomes a row with the reason, and the others go on.

    python benchmarks/speed.py --parents vgg19 resnet50 --batches 128 512

prints tables and writes all numbers to `benchmarks/results/h200.json`. What is there already is not
measured again: a run that was interrupted goes on where it was.
"""

import argparse
import contextlib
import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from noise import CLASSES, noise
from rivals import KEPT, mask_by_autograd, pop_edges_up, prune_at_random
from timing import Row, attempt, copy_bandwidth, matmul_peak, rounded, timed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import aprune as ap
from aprune.connections import attach_masks
from aprune.descent import Search, draw_w
from aprune.files import writing
from aprune.initialise import initialise
from aprune.training import Hook, choose_device
from aprune.training.device import one_thread
from aprune.training.engine import Engine, Level, compile_network
from aprune.training.fit import Training
from aprune.training.fused import FusedUpdate
from aprune.training.masked import Lane
from aprune.training.network import network_for

Retrain = partial[None]
Cell = tuple[Row, Callable[[Row], None]]
"""What a row is about, and how the rest of it is measured."""

# Connections go from the first step on, but few have gone when the measurement ends: a network that has
# just lost most of them computes with zeros, for which a card needs less power and so runs faster.
SEARCH = ap.AP(sparsity=0.9, steps=100_000, dense_start=0.0)
LANES = (1, 2, 4, 8, 16)  # networks that are retrained side by side
LAYERS = 4  # square ones, of the networks that grow
UPDATES = 10  # of them that are timed at once
CPU_KINDS = ("dense, eager", "aprune search, plain path")


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    report: dict[str, Any] = {"machine": describe_machine(device), "commands": []}
    if ask.out.exists():
        report |= json.loads(ask.out.read_text())
    report["commands"].append(shlex.join(["python", *sys.argv]))
    for name in ask.what:
        print(f"\n## {name}\n\n{table_head(COLUMNS[name])}", flush=True)
        rows = report.setdefault(name, [])
        for row, measure in MEASURES[name](ask, device):
            known = [old for old in rows if row.items() <= old.items()]
            if not known or "failed" in known[0]:
                measure(row)
                rows[:] = [old for old in rows if old not in known] + [row]
                write_report(ask.out, report)
            print(table_line(known[0] if known else row, COLUMNS[name]), flush=True)
        if name == "steps":
            print_ratios(rows)


# One step of each kind, on a parent


def measure_steps(ask: argparse.Namespace, device: torch.device) -> Iterable[Cell]:
    task = noise((3, 32, 32), 2_000).to(device)
    for parent, batch in itertools.product(ask.parents, ask.batches):
        torch.compiler.reset()  # it compiles for few shapes, then gives up
        for what in ask.kinds:
            yield {"parent": parent, "batch": batch, "what": what}, partial(measure_step, ask, task)


def measure_step(ask: argparse.Namespace, task: ap.Task, row: Row) -> None:
    parent, batch, peak = row["parent"], row["batch"], matmul_peak(task.train_labels.device)
    attempt(row, time_kind, KINDS[row["what"]], parent, task, batch, ask.repeats)
    if "ms" in row:
        row["images_per_s"] = rounded(1e3 * batch / row["ms"])
        flops = 3 * forward_flops(parent, task, batch)
        row["peak_fraction"] = rounded(flops / row["ms"] / 1e9 / peak) if peak else None


@dataclass(frozen=True)
class Kind:
    """A way to train: what is done to a network for it, and how its steps are run.

    `compiled` gives the network to `torch.compile` as anybody would; the engine of that name does so
    by itself.
    """

    prepare: Callable[[nn.Module], list[Hook] | None]
    engine: Level = "eager"
    compiled: bool = False


def time_kind(kind: Kind, parent: str, task: ap.Task, batch: int, repeats: int) -> Row:
    device = task.train_labels.device
    model = network_for(parent, task, device, seed=0, weights=False)
    initialise(model, scheme="he", seed=0)
    hooks = kind.prepare(model) or []
    with contextlib.ExitStack() as stack:
        training = start_training(kind, model, hooks, task, batch, stack)
        stack.enter_context(training.numbers.resumed())
        return timed(training.advance, repeats, device)


def start_training(
    kind: Kind,
    model: nn.Module,
    hooks: list[Hook],
    task: ap.Task,
    batch: int,
    stack: contextlib.ExitStack,
) -> Training:
    recipe, update = recipe_of(batch), None
    if kind.engine in ("fused", "compiled"):
        if not hooks:
            lane = Lane(model, engine=kind.engine)
            return stack.enter_context(lane.run({}, task, recipe, seed=0))
        fused = FusedUpdate(model, recipe, mover=hooks[0], shape=task.shape)
        update = stack.enter_context(fused.in_place())
    if kind.compiled:
        model = compile_network(model)
    training = Training(model, task, recipe, hooks=hooks, update=update, engine=kind.engine)
    training.start(task, recipe, seed=0)
    return training


def recipe_of(batch: int) -> ap.Recipe:
    return ap.Recipe(steps=SEARCH.steps, lr=0.01, batch=batch, schedule="constant")


def leave_dense(model: nn.Module) -> None:
    """Train all connections."""


def start_search(model: nn.Module, *, parametrised: bool = False) -> list[Hook]:
    connections = ap.find_connections(model)
    w = draw_w(SEARCH, connections, seed=0)
    if parametrised:
        attach_masks(model, w, SEARCH.t_l, SEARCH.t_s)
    return [Search(model, SEARCH, connections, w, attached=parametrised)]


KINDS = {
    "dense, eager": Kind(leave_dense),
    "dense, compiled": Kind(leave_dense, compiled=True),
    "dense, captured": Kind(leave_dense, "captured", compiled=True),
    "dense, aprune's engine": Kind(leave_dense, "compiled"),
    "aprune search": Kind(start_search, "fused"),
    "aprune search, compiled": Kind(start_search, "compiled"),
    "aprune search, plain path": Kind(partial(start_search, parametrised=True), "captured"),
    "autograd through the mask, eager": Kind(mask_by_autograd),
    "torch.nn.utils.prune, eager": Kind(prune_at_random),
    "edge-popup, eager": Kind(pop_edges_up),
}


def print_ratios(rows: Sequence[Row]) -> None:
    dense, autograd = "dense, captured", "autograd through the mask, eager"
    search = "aprune search, compiled"
    pairs = {
        "search ÷ dense": (search, dense, "ms"),
        "search ÷ dense with aprune's engine": (search, "dense, aprune's engine", "ms"),
        "memory: search ÷ dense": (search, dense, "peak_gib"),
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


def measure_growth(ask: argparse.Namespace, device: torch.device) -> Iterable[Cell]:
    for connections, what in itertools.product(ask.connections, ("update alone", "whole step")):
        side = max(64, round(math.sqrt(connections / LAYERS) / 64) * 64)
        row: Row = {"connections": LAYERS * side**2 + CLASSES * side, "what": what}
        yield row, partial(measure_size, ask, device, side)


def measure_size(ask: argparse.Namespace, device: torch.device, side: int, row: Row) -> None:
    attempt(row, time_growth, side, row["what"] == "update alone", device, ask.repeats)
    if "ms" in row:
        row["ns_per_connection"] = rounded(row["ms"] * 1e6 / row["connections"])
    if "bytes_per_connection" in row:
        moved = row["bytes_per_connection"] * row["connections"]
        row["tb_per_s"] = rounded(moved / row["ms"] / 1e9)
        row["copy_tb_per_s"] = copy_bandwidth(device)


def time_growth(side: int, alone: bool, device: torch.device, repeats: int) -> Row:
    task = noise((1, 1, side), 256, moving=False).to(device)
    model = square_network(side, device)
    hooks = start_search(model)
    with contextlib.ExitStack() as stack:
        training = start_training(Kind(start_search, "fused"), model, hooks, task, 64, stack)
        if not alone:
            return timed(training.advance, repeats, device)
        training.advance()  # leaves gradients in place
        update = training._loop.update

        def move_often() -> None:  # in one recording, as in a step: launching one takes a while
            for _ in range(UPDATES):
                update.move()

        engine = Engine(move_often, device, settle=update.settle)
        times = timed(engine.run, repeats, device)
        times |= {name: rounded(times[name] / UPDATES) for name in TIMES}
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


def measure_retraining(ask: argparse.Namespace, device: torch.device) -> Iterable[Cell]:
    task = noise((3, 32, 32), 500).to(device)
    recipe = ap.Recipe(steps=ask.steps, lr=0.01, batch=64, schedule="constant")
    for parent, what in itertools.product(ask.retrained, ask.ways):
        retrain = RETRAININGS[what]
        runs = ask.runs * retrain.keywords.get("lanes", 1)
        row: Row = {"parent": parent, "what": what, "steps": ask.steps, "runs": runs}

        def measure(row: Row, retrain: Retrain = retrain) -> None:
            attempt(row, time_retraining, retrain, row["parent"], task, recipe, row["runs"])

        yield row, measure


def time_retraining(
    retrain: Retrain, parent: str, task: ap.Task, recipe: ap.Recipe, runs: int
) -> Row:
    architecture = ap.find(
        parent, task, ap.Random(), sparsity=1 - KEPT, device=task.train_labels.device
    )
    todo = [ap.Retraining(architecture, parent, task, seed, recipe) for seed in range(runs)]
    retrain([replace(todo[0], recipe=recipe.but(steps=5))])  # what happens only once
    begin = time.perf_counter()
    retrain(todo)
    seconds = (time.perf_counter() - begin) / runs
    return {"s_per_run": rounded(seconds), "runs_per_minute": rounded(60 / seconds)}


def one_by_one(todo: list[ap.Retraining], *, engine: Level) -> None:
    for one in todo:
        ap.transfer(
            one.architecture,
            one.parent,
            one.task,
            seed=one.seed,
            recipe=one.recipe,
            engine=engine,
            device=one.task.train_labels.device,
            progress=False,
        )


def in_bulk(todo: list[ap.Retraining], *, engine: Level, lanes: int) -> None:
    where = todo[0].task.train_labels.device
    for _ in ap.transfer_many(todo, lanes=lanes, engine=engine, device=where, progress=False):
        pass


RETRAININGS: dict[str, Retrain] = {
    "one by one, eager": partial(one_by_one, engine="eager"),
    "one by one, captured": partial(one_by_one, engine="captured"),
    **{
        f"in bulk, {lanes} at a time, {engine}": partial(in_bulk, engine=engine, lanes=lanes)
        for engine, lanes in itertools.product(("fused", "compiled"), LANES)
    },
}


# A step on one thread of a CPU


def measure_cpu(ask: argparse.Namespace, device: torch.device) -> Iterable[Cell]:  # noqa: ARG001
    def measure(row: Row) -> None:
        attempt(row, time_on_cpu, KINDS[row["what"]], 10 * ask.repeats)

    for what in CPU_KINDS:
        yield {"parent": "mlp", "batch": 64, "what": what}, measure


def time_on_cpu(kind: Kind, repeats: int) -> Row:
    with one_thread():
        return time_kind(kind, "mlp", ap.load_task("digits"), 64, repeats)


def forward_flops(parent: str, task: ap.Task, batch: int) -> int:
    with torch.device("meta"):
        model = ap.build_parent(parent, task).eval()
        images = torch.empty(batch, *task.shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter.get_total_flops()


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
    "cpu": ("parent", "batch", "what", *TIMES),
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
    parser.add_argument(
        "--ways", nargs="+", default=list(RETRAININGS), choices=RETRAININGS, help="to retrain"
    )
    parser.add_argument("--steps", type=int, default=1_600, help="of a retraining")
    parser.add_argument("--runs", type=int, default=3, help="retrainings of each kind")
    parser.add_argument("--repeats", type=int, default=30, help="of every step that is timed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
