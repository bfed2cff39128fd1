"""The states of searches and retrainings that are under way."""

import json
import random
import tempfile
import warnings
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import aprune as ap
from aprune.errors import ApruneWarning
from aprune.training import checkpoint
from aprune.training.state_file import _TO_CHECKSUM
from fuzz import mutate
from fuzz.target import LOADED, SET_ASIDE, Case, Link, Pipe, Target

_QUICK = ap.Recipe(steps=6, lr=0.1, batch=8)


def _task() -> ap.Task:
    pixels = (torch.arange(16 * 4) * 37 % 256).to(torch.uint8).view(16, 1, 2, 2)
    labels = torch.arange(16) % 2
    augment = ap.load_task("digits").augment
    return ap.Task("made", pixels, labels, pixels, labels, ("a", "b"), augment, {"data": "made"})


TASK = _task()


def _search(method: Any) -> Callable[[Path], bytes]:
    def run(folder: Path) -> bytes:
        found = ap.search(
            "logistic",
            TASK,
            method,
            sparsities=[0.25, 0.5],
            recipe=_QUICK,
            weights=True,
            device="cpu",
            checkpoint=folder,
        )
        return b"".join(mask.numpy().tobytes() for mask in found.architectures[1].masks().values())

    return run


def _retrain(folder: Path) -> bytes:
    adam = ap.Recipe(steps=6, lr=0.1, batch=8, optimiser="adam")
    result = ap.transfer(None, "logistic", TASK, recipe=adam, device="cpu", checkpoint=folder)
    return b"".join(value.numpy().tobytes() for value in result.model.state_dict().values())


RUNS: dict[str, Callable[[Path], bytes]] = {
    "ap": _search(ap.AP(dense_start=0.2)),
    "imp": _search(ap.IMP(rounds=2, rewind=1)),
    "rigl": _search(ap.RigL(every=2)),
    "transfer": _retrain,
}


def sign(header: dict[str, Any], data: bytes) -> bytes:
    """Write a state with the checksum that belongs to it, as a stranger who knows the format would."""
    notes = dict(header.pop("__metadata__", {}))
    notes = {"checksum": "0" * 8, **{k: v for k, v in notes.items() if k != "checksum"}}
    compact = json.dumps({"__metadata__": notes, **header}, separators=(",", ":")).encode()
    whole = mutate.join_safetensors(compact, data)
    text = whole[8 : len(whole) - len(data)]
    begin = len(_TO_CHECKSUM)
    total = zlib.crc32(data, zlib.crc32(text[begin + 8 :], zlib.crc32(text[:begin])))
    return whole[: 8 + begin] + f"{total:08x}".encode() + whole[8 + begin + 8 :]


class Checkpoints(Target):
    name = "checkpoint"

    @cached_property
    def _kept(self) -> dict[str, tuple[dict[str, bytes], bytes]]:
        """The states that each run leaves behind at its step before the last, and its result."""
        kept = {}
        for name, run in RUNS.items():
            with tempfile.TemporaryDirectory() as place:
                with patch.multiple(checkpoint, INTERVAL=0.0, SHARE=float("inf")):
                    result = run(Path(place))
                paths = sorted(Path(place).iterdir())[:-1]
                case = {f"states/{path.name}": path.read_bytes() for path in paths}
                kept[name] = case, result
        return kept

    @cached_property
    def good(self) -> Case:
        return {**self._kept["ap"][0], "which": b"ap"}

    def damage(self, rng: random.Random) -> Case:
        which = rng.choice(list(RUNS))
        case: Case = {**self._kept[which][0], "which": which.encode()}
        states = [name for name in case if name != "which"]
        for name in rng.sample(states, rng.randint(1, len(states))):
            content = case[name]
            assert isinstance(content, bytes)
            case[name] = self._damage_one(rng, content)
        return case

    def _damage_one(self, rng: random.Random, content: bytes) -> bytes | Link | Pipe | None:
        kind = rng.randrange(10)
        if kind == 0:
            return rng.choice((Link("../../outside"), Link("/dev/zero"), Pipe(), None))
        if kind <= 2:
            return mutate.damage(rng, content)
        header, data = mutate.split_safetensors(content)
        notes = header["__metadata__"]
        if kind <= 5:
            notes["state"] = mutate.dump(
                mutate.change_value(rng, json.loads(notes["state"]))
            ).decode("utf-8", "surrogatepass")
        elif kind == 6:
            place = rng.randrange(len(data))
            data = data[:place] + rng.randbytes(len(data) - place)
        else:
            return sign(*self._change_tensors(rng, header, data))
        return sign(header, data)

    def _change_tensors(
        self, rng: random.Random, header: dict[str, Any], data: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """Leave out, rename, add or reshape tensors; lengths and offsets stay sensible."""
        parts = {
            name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()
            if name != "__metadata__"
        }
        name = rng.choice(list(parts))
        dtype, shape, content = parts[name]
        kind = rng.randrange(5)
        if kind == 0:
            del parts[name]
        elif kind == 1:
            parts[rng.choice((*mutate.NAMES, f"{name}x", "update/9/momentum_buffer"))] = parts.pop(
                name
            )
        elif kind == 2:
            parts[name] = (dtype, [1, *shape], content)
        elif kind == 3:
            parts[name] = ("U8", [len(content)], content)
        else:
            other = rng.choice(list(parts))
            parts[name], parts[other] = parts[other], parts[name]
        changed: dict[str, Any] = {"__metadata__": header["__metadata__"]}
        end = 0
        for key, (kind_of, size, piece) in parts.items():
            offsets = [end, end + len(piece)]
            changed[key] = {"dtype": kind_of, "shape": size, "data_offsets": offsets}
            end += len(piece)
        return changed, b"".join(piece for _, _, piece in parts.values())

    def load(self, folder: Path) -> str:
        which = (folder / "which").read_text()
        states, result = self._kept[which]
        damaged = [name for name, content in states.items() if _content(folder / name) != content]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = RUNS[which](folder / "states")
        assert all(issubclass(one.category, ApruneWarning) for one in said), said
        refused = {name for name in damaged for one in said if Path(name).name in str(one.message)}
        if len(refused) == len(damaged):  # then the run is as if they had not been there
            assert found == result, "a state that was set aside has left something behind"
        return SET_ASIDE if refused else LOADED


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None
