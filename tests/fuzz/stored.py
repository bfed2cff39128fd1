"""What aprune itself writes: architectures, models, folders of comparisons, tables of rows."""

import contextlib
import json
import random
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from aprune.architecture import Architecture
from aprune.architecture.file import _checksum
from aprune.architecture.shape import dump_shapes, fingerprint
from aprune.errors import FileError
from aprune.experiments.rows import read_rows
from aprune.experiments.store import Store, _digest, key_of
from aprune.parents import build_parent, parent_names
from aprune.trained import Trained, load_model
from aprune.training.checkpoint import Checkpoint
from fuzz import mutate
from fuzz.target import LOADED, SET_ASIDE, Case, Link, Pipe, Target, saved, settle


def small_architecture() -> Architecture:
    masks = {
        "features.0.weight": torch.arange(2 * 3 * 3 * 3).view(2, 3, 3, 3) % 3 == 0,
        "head": torch.tensor([[True, False, True], [False, False, True]]),
    }
    return Architecture(masks, {"method": "ap", "parent": "mlp", "rates": [0.1, {"a": None}]})


def sign_architecture(header: dict[str, Any], data: bytes) -> None:
    """Put fingerprint and checksum right, as a stranger who knows the format would."""
    notes = header["__metadata__"]
    shapes = {name: tuple(shape) for name, shape in json.loads(notes["tensors"])}
    notes["fingerprint"] = fingerprint(shapes)
    parts = [data[slice(*header[name]["data_offsets"])] for name in shapes]
    notes["checksum"] = _checksum(notes["tensors"], notes["provenance"], parts)


class ArchitectureFile(Target):
    name = "architecture"

    @cached_property
    def good(self) -> Case:
        return {"x.arch.safetensors": saved(small_architecture().save)}

    def damage(self, rng: random.Random) -> Case:
        ((name, content),) = self.good.items()
        if rng.random() < 0.1:
            return {name: self._declare(rng)}
        return {name: mutate.damage_safetensors(rng, content, sign_architecture)}

    def _declare(self, rng: random.Random) -> bytes:
        """Declare many connections in a few bytes, with all checksums right."""
        shape = [
            rng.choice((2, 1000, 2**20, 2**31, 10**12, 2**61)) for _ in range(rng.choice((1, 2)))
        ]
        data = bytes(rng.choice((0, 1, 8)))
        header: dict[str, Any] = {
            "__metadata__": {
                "format": "aprune.architecture",
                "version": "1",
                "tensors": dump_shapes({"a": tuple(shape)}),
                "provenance": "{}",
            },
            "a": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]},
        }
        sign_architecture(header, data)
        return mutate.join_safetensors(mutate.dump(header), data)

    def load(self, folder: Path) -> str:
        architecture = Architecture.load(folder / "x.arch.safetensors")
        architecture.layers()
        dict(architecture.provenance)
        return LOADED


def small_model(parent: str = "logistic", *, bare: bool = False, run: str = "") -> Trained:
    task = SimpleNamespace(shape=(1, 2, 2), num_classes=3)
    model = build_parent(parent, task)
    with torch.no_grad():
        weight = next(model.parameters())
        weight.mul_(torch.arange(weight.numel()).view_as(weight) % 3 == 0)
        if bare:
            weight.copy_(weight.sign() / 2)
    moments = torch.full((1,), 0.5), torch.full((1,), 0.25)
    return Trained(model, parent, (1, 2, 2), ("a", "b", "c"), *moments, {"seed": 0, "run": run})


def keep_unsigned(header: dict[str, Any], data: bytes) -> None:
    """A model has no checksum."""


class ModelFile(Target):
    name = "model"

    @cached_property
    def good(self) -> Case:
        for parent in parent_names():  # PyTorch imports much when it builds the first ones
            with torch.device("meta"):
                build_parent(parent, SimpleNamespace(shape=(3, 32, 32), num_classes=2))
        return {"x.model.safetensors": saved(small_model().save)}

    @cached_property
    def _others(self) -> list[bytes]:
        return [*self.good.values(), saved(small_model(bare=True).save)]  # type: ignore[list-item]

    def damage(self, rng: random.Random) -> Case:
        content = rng.choice(self._others)
        if rng.random() < 0.2:
            header, data = mutate.split_safetensors(content)
            notes = header["__metadata__"]
            about = json.loads(notes["about"])
            about["parent"] = rng.choice((*parent_names(), "nowhere:net", "os:system"))
            about["shape"] = [rng.choice((1, 3, 32, 1024, 2**14)) for _ in range(3)]
            about["classes"] = ["c"] * rng.choice((1, 3, 1000))
            notes["about"] = json.dumps(about)
            return {"x.model.safetensors": mutate.join_safetensors(mutate.dump(header), data)}
        return {"x.model.safetensors": mutate.damage_safetensors(rng, content, keep_unsigned)}

    def load(self, folder: Path) -> str:
        trained = load_model(folder / "x.model.safetensors")
        dict(trained.provenance)
        return LOADED


# --- the folder of a comparison --------------------------------------------------------------------

SEARCH = {"kind": "search", "method": "ap", "seed": 0}
TRANSFER = {"kind": "transfer", "search": SEARCH, "seed": 0}
STATE = f"{Checkpoint('', {}).key}-0000-0000000001.safetensors"
SEARCHED = {
    "failed": None,
    "steps": 10,
    "loss": 0.5,
    "curves": [[1.0, 0.5]],
    "accuracy": 0.75,
    "connections": [12],
    "empty_layers": [0],
    "densities": [{"fc.weight": 0.5}],
    "seconds": 0.1,
    "device": "cpu",
}
TRANSFERRED = {
    "failed": None,
    "accuracy": 0.5,
    "train_loss": 0.25,
    "curve": [1.0, 0.25],
    "device": "cpu",
}


class StoreFolder(Target):
    name = "run folder"

    @cached_property
    def good(self) -> Case:
        with tempfile.TemporaryDirectory() as place:
            store = Store(place)
            store.put(SEARCH, SEARCHED)
            store.put(TRANSFER, TRANSFERRED)
            store.put_architecture(SEARCH, small_architecture())
            store.put_network(SEARCH, small_model())
            files = [path for path in sorted(store.folder.rglob("*")) if path.is_file()]
            return {str(path.relative_to(place)): settle(path) for path in files}

    def damage(self, rng: random.Random) -> Case:
        if rng.random() < 0.1:
            return self._put_in_the_way(rng)
        case = dict(self.good)
        runs = [name for name in case if str(name).startswith("runs/")]
        name = rng.choice((*case, *runs, *runs))
        content = case[name]
        assert isinstance(content, bytes)
        kind = rng.randrange(10)
        if kind == 0:
            case[name] = rng.choice((Link("../../outside"), Link("/dev/zero"), Pipe(), None))
        elif kind == 1:
            below = str(name).partition("/")[0]
            case = {key: case[key] for key in case if not str(key).startswith(below)}
            case[below] = rng.choice((Link("../outside"), Link("."), Link("../../outside"), b""))
        elif name not in runs:
            sign = sign_architecture if str(name).startswith("arch") else keep_unsigned
            case[name] = mutate.damage_safetensors(rng, content, sign)
        elif kind <= 3:
            case[name] = mutate.damage(rng, content)
        else:
            entry = json.loads(content)
            part = rng.choice(("result", "result", "description", None))
            if part is None:
                entry = mutate.change_value(rng, entry)
            else:
                entry[part] = mutate.change_value(rng, entry[part])
            if isinstance(entry, dict) and rng.random() < 0.8:
                with contextlib.suppress(Exception):  # nothing may be left that could be signed
                    entry["checksum"] = _digest(json.loads(mutate.dump(entry["result"])))
            case[name] = mutate.dump(entry)
        return case

    def _put_in_the_way(self, rng: random.Random) -> Case:
        """Put something where claims, states, and files that are not whole yet would be."""
        run = key_of(SEARCH)
        state = f"checkpoints/{run}"
        names = ("checkpoints", state, f"{state}/claim", f"{state}/{STATE}")
        name = rng.choice((*names, f"runs/.{run}.json.part-abcdefgh.json"))
        up = "../" * name.count("/")
        things = (Link(f"{up}../outside"), Link("."), Link("/dev/zero"), Pipe(), b"", None)
        return {**self.good, name: rng.choice(things)}

    def load(self, folder: Path) -> str:
        store = Store(folder)
        with store.claim(SEARCH), contextlib.suppress(FileError):  # the work would go on
            Checkpoint(store.checkpoint(SEARCH), {}).write(0, {"step": 1})
        found = [
            store.get(SEARCH),
            store.get(TRANSFER),
            store.get_architecture(SEARCH),
            store.get_network(SEARCH, "logistic"),
        ]
        use_results(found[0], found[1])
        store.put(SEARCH, SEARCHED)
        store.put(TRANSFER, TRANSFERRED)
        assert store.get(SEARCH) == SEARCHED
        assert store.get(TRANSFER) == TRANSFERRED
        return SET_ASIDE if None in found else LOADED


def use_results(search: Mapping[str, Any] | None, transfer: Mapping[str, Any] | None) -> None:
    """Do with results what a comparison does with them."""
    if search is not None:
        *_, steps = search["connections"][0], search["empty_layers"][0], search.get("steps", 0)
        assert type(steps) is int
        np.array([search.get("loss"), search.get("accuracy")], dtype=np.float64)
        for layers in search.get("densities", ()):
            np.array([density for _, density in layers.items()], dtype=np.float64)
        assert search["failed"] is None or isinstance(search["failed"], str)
    if transfer is not None:
        sum(result["accuracy"] or 0.0 for result in (transfer,))
        np.array([transfer["accuracy"], transfer["train_loss"]], dtype=np.float64)
        assert transfer["failed"] is None or isinstance(transfer["failed"], str)


class Rows(Target):
    name = "rows"

    @cached_property
    def good(self) -> Case:
        import pandas as pd

        from aprune.experiments.comparison import _COLUMNS

        row = {name: "" if kind == "str" else 0 for name, kind in _COLUMNS.items()}
        rows = [{**row, "figure": "figure2", "seed": seed} for seed in range(3)]
        frame = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
        return {"rows.parquet": saved(lambda path: frame.to_parquet(path, index=False))}

    def damage(self, rng: random.Random) -> Case:
        content = self.good["rows.parquet"]
        assert isinstance(content, bytes)
        return {"rows.parquet": mutate.damage_parquet(rng, content)}

    def load(self, folder: Path) -> str:
        read_rows(folder / "rows.parquet")
        return LOADED
