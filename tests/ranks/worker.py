"""What every process of a team does in the tests; alone it is the reference.

    torchrun --nproc-per-node 2 tests/ranks/worker.py FOLDER

Each process writes what it holds to FOLDER/RANK.json, as hashes, and the first one all numbers of the
cases to FOLDER/numbers.safetensors.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import aprune as ap
from aprune.descent import Search
from aprune.errors import RankError
from aprune.initialise import RandomNumbers
from aprune.methods import METHODS, find_method
from aprune.tensor_file import pieces_of
from aprune.training import checkpoint
from aprune.training.ranks import Team, joined
from aprune.training.state import digest
from aprune.training.update import PlainUpdate

DIGITS = ap.load_task("digits")
FEW = 8
"""Steps of w after which those of networks with norms are compared: then rounding is amplified."""


BEGUN = 15
"""Steps after which a training is stopped, in the middle of the last, to be taken up by others."""


class Dropping(nn.Module):
    """One number dropped at a time, and whole channels."""

    def __init__(self, task: ap.Task) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.channels, self.single = nn.Dropout2d(0.2), nn.Dropout(0.5)
        self.fc = nn.Linear(16 * 64, task.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.single(self.channels(self.conv(x).relu()).flatten(1)))


def search(parent: Any, *, norms: bool = False, **changes: Any) -> dict[str, Tensor]:
    """Return w when it has moved for the last time, or the first few times, and the masks."""
    moved: list[dict[str, Tensor]] = []
    after = Search.after

    def look(self: Search, step: int) -> None:
        before = {name: w.detach().clone() for name, w in self.w.items()}
        if self.moving and (not norms or len(moved) < FEW):
            moved.append(before)
        after(self, step)

    recipe = ap.Recipe(steps=60, lr=0.05, **changes)
    with patch.object(Search, "after", look):
        found = ap.find(parent, DIGITS, ap.AP(), sparsity=0.9, recipe=recipe, device="cpu")
    numbers = {f"w.{name}": w for name, w in moved[-1].items()}
    return numbers | ({} if norms else {f"mask.{n}": m for n, m in found.masks().items()})


def retrain() -> dict[str, Tensor]:
    architecture = ap.find("conv_bn", DIGITS, ap.Random(), sparsity=0.8)
    recipe = ap.Recipe(steps=20, lr=0.05, batch=61, mixup=0.5)  # 61: shares of unequal size
    result = ap.transfer(architecture, "conv_bn", DIGITS, recipe=recipe, device="cpu")
    return dict(result.model.state_dict())


def choose() -> dict[str, Tensor]:
    """Return the masks that all methods find."""
    recipe = ap.Recipe(steps=20, lr=0.05, batch=61)
    masks: dict[str, Tensor] = {}
    for name in METHODS:
        method = find_method(name)
        found = ap.find("mlp", DIGITS, method, sparsity=0.9, recipe=recipe, device="cpu")
        masks |= {f"{name}.{layer}": mask for layer, mask in found.masks().items()}
    return masks


CASES: dict[str, Callable[[], dict[str, Tensor]]] = {
    "mlp": lambda: search("mlp"),
    "dropout": lambda: search(Dropping),
    "norms": lambda: search("conv_bn", norms=True, batch=61, mixup=0.5),
    "retraining": retrain,
    "methods": choose,
}


class Stop(BaseException):
    """What happens to all processes at the same step."""


def train_on(place: Path, most: int = 1000) -> tuple[dict[str, Tensor], int]:
    """Go on with a training whose states are in a folder; return its weights, and the steps done."""
    done: list[int] = []
    move = PlainUpdate.move

    def moving(self: PlainUpdate) -> None:
        move(self)
        done.append(1)
        if len(done) == most:
            raise Stop

    often = patch.multiple(checkpoint, INTERVAL=0.0, SHARE=float("inf"))
    recipe = ap.Recipe(steps=40, lr=0.05, batch=61, mixup=0.5)
    weights: dict[str, Tensor] = {}
    with often, patch.object(PlainUpdate, "move", moving), contextlib.suppress(Stop):
        result = ap.transfer(None, "mlp", DIGITS, recipe=recipe, device="cpu", checkpoint=place)
        weights = dict(result.model.state_dict())
    return weights, len(done)


def complain(team: Team) -> str:
    """Return what is said when one process holds another number."""
    numbers = torch.ones(5) + (torch.arange(5) == 3) * float(team.rank == 1) * 1e-7
    try:
        team.check_same({"step": 3, "zeros": torch.zeros(2), "numbers": numbers}, "in a test")
    except RankError as error:
        return str(error)
    return ""


def stray(team: Team) -> str:
    """Return what is said when one process draws other random numbers, which move no weight yet."""
    seed = RandomNumbers.seed

    def other(self: RandomNumbers, number: int) -> None:
        seed(self, number + int(team.rank == 1))

    try:
        with patch.object(RandomNumbers, "seed", other):
            ap.transfer(None, "mlp", DIGITS, recipe=ap.Recipe(steps=2, lr=0.05), device="cpu")
    except RankError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    with joined("cpu") as team:
        held = {name: do() for name, do in CASES.items()}
        train_on(folder / "begun together", BEGUN)
        held["taken up"], steps = train_on(folder / "begun alone")
        state = {"step": 3, "weight": torch.arange(3.0), "flags": torch.tensor([True, False])}
        handed = team.hand_out_state(state if team.first else None)
        assert handed is not None
        about = {
            "rank": team.rank,
            "steps": steps,
            "digests": {name: digest(numbers) for name, numbers in held.items()},
            "complaint": complain(team),
            "stray": stray(team),
            "votes": [team.any(team.rank == 1), team.any(False)],
            "handed": {n: v.tolist() if isinstance(v, Tensor) else v for n, v in handed.items()},
            "nothing": team.hand_out_state(None),
        }
    about["threads"] = sorted(path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    (folder / f"{team.rank}.json").write_text(json.dumps(about))
    if team.first:
        whole = {f"{case}/{n}": v for case, numbers in held.items() for n, v in numbers.items()}
        with (folder / "numbers.safetensors").open("wb") as file:
            file.writelines(pieces_of({}, whole))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
