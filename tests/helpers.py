"""What several test files build their cases from."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aprune import AP
from aprune.tasks import Augment, Task


def other_world(channels: int = 3, size: int = 12, classes: int = 5) -> Task:
    """A task of noise whose shape and classes are not those of the digits."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, channels, size, size), generator=generator).to(torch.uint8)
    labels = torch.arange(40) % classes
    names = tuple(f"kind {k}" for k in range(classes))
    return Task("other", pixels, labels, pixels, labels, names, Augment(True, 1), {"data": "made"})


def torchrun(processes: int, *words: str) -> list[str]:
    """The command that starts some processes of this machine as one team."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), *words]


def states_every(seconds: float, place: Path) -> Path:
    """A folder for PYTHONPATH: Python processes then write states of trainings so often."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(
        "import importlib.abc, importlib.machinery, sys\n"
        "class Often(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name != 'aprune.training.checkpoint':\n"
        "            return None\n"
        "        spec = importlib.machinery.PathFinder.find_spec(name, path)\n"
        "        run = spec.loader.exec_module\n"
        "        def execute(module):\n"
        "            run(module)\n"
        f"            module.INTERVAL, module.SHARE = {seconds}, float('inf')\n"
        "        spec.loader.exec_module = execute\n"
        "        return spec\n"
        "sys.meta_path.insert(0, Often())\n"
    )
    return place


Change = Callable[[dict[str, Tensor], dict[str, Any]], None]


def altered(saved: Path, to: Path, change: Change, **metadata: str) -> Path:
    """Write the file of a model anew with some of its content changed."""
    with safe_open(str(saved), framework="pt") as file:
        head = dict(file.metadata())
    about, tensors = json.loads(head["about"]), load_file(saved)
    change(tensors, about)
    save_file(tensors, to, metadata={**head, "about": json.dumps(about), **metadata})
    return to


def w_of(model: nn.Module) -> Tensor:
    """All w of a network as one vector; they are part of its state."""
    state = model.state_dict()
    return torch.cat([state[name].flatten().clone() for name in state if name.endswith(".0.w")])


def plain_descent(sparsity: float | tuple[float, ...], steps: int, **more: Any) -> AP:
    """The paper's step from the first step on, with numbers that are easy to follow."""
    return AP(
        sparsity=sparsity,
        steps=steps,
        relative=False,
        dense_start=0.0,
        **{"w_scale": 0.5, "w_step": 0.1, "w_schedule": "constant", "gamma": 0.5, **more},
    )
