"""What it costs to be able to go on after an interruption: docs/guide.md, "Interrupt and resume".

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py

Searches with states at the default interval, beside the same ones without; and one state of the size
that VGG19 has. The share is the time spent on states, in all, over the time of the search. It is
steadier than the ratio of two searches, which is printed too.
"""

import json
import tempfile
import time
from pathlib import Path

import torch

from aprune import AP, Recipe, load_task
from aprune.finding import search
from aprune.training.checkpoint import Checkpoint, Keeper

CONNECTIONS = 139_597_504  # of VGG19 with 10 outputs
SEARCHES = {  # parent, size of the images, steps: each takes some minutes on one core
    "conv": ("conv", None, 10_000),
    "resnet18": ("resnet18", 32, 300),
}


def main() -> None:
    """Print one line of JSON for each measurement."""
    for name, (parent, size, steps) in SEARCHES.items():
        print(json.dumps({"search": name, **measure_search(parent, size, steps)}), flush=True)
    print(json.dumps({"state": "VGG19", **measure_state()}), flush=True)


def measure_search(parent: str, size: int | None, steps: int) -> dict[str, float]:
    """Search once with states and once without."""
    task = load_task("digits", size=size)
    spent: list[float] = []
    written: list[int] = []
    look, write = Keeper.look, Checkpoint.write

    def looking(self: Keeper, *, now: bool = False) -> None:
        begin = time.perf_counter()
        look(self, now=now)
        spent.append(time.perf_counter() - begin)

    def writing(self: Checkpoint, training: int, state: dict[str, object]) -> None:
        write(self, training, state)
        written.append(max(path.stat().st_size for path in self.folder.iterdir()))

    def run(folder: str | None) -> float:
        begin = time.perf_counter()
        recipe = Recipe(steps=steps, lr=0.03)
        search(parent, task, AP(), sparsities=[0.9], recipe=recipe, checkpoint=folder)
        return time.perf_counter() - begin

    without = run(None)
    with tempfile.TemporaryDirectory() as folder:
        Keeper.look, Checkpoint.write = looking, writing  # type: ignore[method-assign]
        try:
            seconds = run(folder)
        finally:
            Keeper.look, Checkpoint.write = look, write  # type: ignore[method-assign]
    return {
        "seconds": round(seconds, 1),
        "states": len(written),
        "megabytes": round(max(written, default=0) / 1e6, 2),
        "share": round(sum(spent) / seconds, 5),
        "ratio": round(seconds / without, 3),
    }


def measure_state() -> dict[str, float]:
    """Write and read θ, w and a momentum of each connection of VGG19."""
    state = {name: torch.randn(CONNECTIONS) for name in ("theta", "w", "momentum")}
    with tempfile.TemporaryDirectory() as folder:
        box = Checkpoint(folder, {"what": "benchmark"})
        begin = time.perf_counter()
        box.write(0, {"step": 1, **state})
        wrote = time.perf_counter() - begin
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        begin = time.perf_counter()
        box.resume(0, lambda _: None)
        read = time.perf_counter() - begin
    return {
        "gigabytes": round(size / 1e9, 2),
        "write_seconds": round(wrote, 2),
        "read_seconds": round(read, 2),
    }


if __name__ == "__main__":
    main()
