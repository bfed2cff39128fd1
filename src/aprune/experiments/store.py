"""Finished runs as files: a run that is there is not run again.

A run is described by everything that determines it. The hash of that description names its file, so
that starting over after an interruption finds what was done, and a changed setting finds nothing.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from aprune.architecture import Architecture
from aprune.errors import ArchitectureError, FileError, SettingError
from aprune.files import check_no_link, check_ordinary, claimed, printable, writing
from aprune.parents import parent_names
from aprune.trained import Trained, load_model
from aprune.training.checkpoint import CLAIM, remove_checkpoint

Description = Mapping[str, Any]
T = TypeVar("T")

PATIENCE = 0.2
"""Seconds between two looks at what other processes are at."""
_LARGEST = 2**62  # what a column of whole numbers holds
_KINDS = ("runs", "architectures", "networks")


def key_of(description: Description) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a description as canonical JSON.

    Args:
        description: Anything that JSON can hold; the order of the names does not matter.

    Raises:
        SettingError: JSON cannot hold it.

    Example:
        >>> key_of({"seed": 0, "method": "ap"}) == key_of({"method": "ap", "seed": 0})
        True
    """
    return _digest(description)[:16]


class Store:
    """Results and architectures of runs under one folder.

    Results are in `runs/<key>.json`, architectures in `architectures/<key>.arch.safetensors`, networks
    with their weights, where they are asked for, in `networks/<key>.safetensors`, and the states of runs
    that are under way in `checkpoints/<key>`. Files are written whole or not at all; one that is
    damaged, half copied or of another run counts as absent. Nothing is read or written through a
    sub-folder that is a link to somewhere else.

    Args:
        folder: Where to keep them; it is made with the first file.
        fresh: Whether to pass over what is there: every run is done again, and takes its place.

    Attributes:
        damaged: The files that were found and not believed, in the order in which they were met.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.put({"seed": 0}, {"accuracy": 0.9})
        >>> store.get({"seed": 0}), store.get({"seed": 1})
        ({'accuracy': 0.9}, None)
    """

    def __init__(self, folder: Path | str, *, fresh: bool = False) -> None:
        self.folder = Path(folder)
        self.damaged: list[Path] = []
        self._fresh, self._made = fresh, set[Path]()

    def get(self, description: Description) -> dict[str, Any] | None:
        """Return the result of the run so described, or None if there is none."""
        path = self.run_path(description)
        if not self._counts(path):
            return None
        try:
            check_ordinary(path)
            entry = json.loads(path.read_text(encoding="utf-8"))
            whole = entry["checksum"] == _digest(entry["result"])
            same = _canonical(entry["description"]) == _canonical(description)
            if whole and same and _is_result(entry["result"], description):
                self._tidy(description)
                return dict(entry["result"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SettingError):
            pass
        self._distrust(path)
        return None

    def put(self, description: Description, result: Mapping[str, Any]) -> None:
        """Keep the result of a run.

        Raises:
            FileError: Nothing can be written there.
            SettingError: JSON cannot hold it; a number that is not known is None, not nan.
        """
        entry = {"description": description, "result": result, "checksum": _digest(result)}
        _canonical(entry)  # fails before anything is written
        with writing(self._note(self.run_path(description))) as temporary:
            temporary.write_text(json.dumps(entry, indent=1), encoding="utf-8")
        remove_checkpoint(self.checkpoint(description))

    def checkpoint(self, description: Description) -> Path:
        """Return the folder for states of the run so described, while it is under way."""
        place = self._state_place(description)
        if not self._counts(place):
            remove_checkpoint(self._note(place))
        return place

    def claim(self, description: Description) -> contextlib.AbstractContextManager[bool]:
        """Let only one process at a time do the run so described: see `files.claimed`.

        Whoever gets the claim looks once more whether the run was done in between.
        """
        return claimed(self._state_place(description) / CLAIM)

    def do_once(
        self, description: Description, look: Callable[[], T | None], do: Callable[[], T]
    ) -> T:
        """Do a run, unless another process is at it: then wait for that.

        Args:
            description: Of the run.
            look: Returns what it left, or None.
            do: Does it.
        """
        while True:
            with self.claim(description) as mine:
                found = look()
                if found is not None:
                    return found
                if mine:
                    return do()
            time.sleep(PATIENCE)

    def has_architecture(self, description: Description) -> bool:
        """Tell whether there is a file of the architecture so described, sound or not."""
        path = self.architecture_path(description)
        return path.is_file() and self._counts(path)

    def get_architecture(self, description: Description) -> Architecture | None:
        """Return the architecture so described, or None if there is none."""
        path = self.architecture_path(description)
        if not self._counts(path):
            return None
        with contextlib.suppress(ArchitectureError):
            architecture = Architecture.load(path)
            if architecture.provenance.get("run") == key_of(description):
                return architecture
        self._distrust(path)
        return None

    def put_architecture(self, description: Description, architecture: Architecture) -> None:
        """Keep an architecture; its provenance also gets the key of the run.

        Raises:
            FileError: Nothing can be written there.
        """
        marked = architecture.with_provenance(run=key_of(description))
        marked.save(self._note(self.architecture_path(description)))

    def get_network(self, description: Description, parent: str) -> Trained | None:
        """Return the network so described, on the CPU, or None if there is none."""
        path = self.network_path(description)
        if not self._counts(path):
            return None
        with contextlib.suppress(FileError):
            network = load_model(path, None if parent in parent_names() else parent)
            if network.provenance.get("run") == key_of(description):
                return network
        self._distrust(path)
        return None

    def put_network(self, description: Description, network: Trained) -> None:
        """Keep a network with its weights; its provenance also gets the key of the run.

        Raises:
            FileError: Nothing can be written there.
        """
        provenance = {**network.provenance, "run": key_of(description)}
        path = self._note(self.network_path(description))
        replace(network, provenance=provenance).save(path)

    def names(self) -> set[str]:
        """Return the names of all files that runs have left behind, below the folder."""
        found = (path for kind in _KINDS for path in self._place(kind).glob("[!.]*"))
        return {path.relative_to(self.folder).as_posix() for path in found if path.is_file()}

    def adopt(self, files: Mapping[str, bytes]) -> None:
        """Take over files of another store, by name; results come last, as they do in `put`.

        Raises:
            FileError: Nothing can be written there, or a name is none that `names` would give.
        """
        for name in sorted(files, key=lambda name: name.startswith("runs/")):
            kind, _, rest = name.partition("/")
            if kind not in _KINDS or not rest or Path(rest).name != rest or rest[0] == ".":
                raise FileError(f"{printable(name)} is no file of a store of runs")
            with writing(self._note(self._place(kind) / rest)) as temporary:
                temporary.write_bytes(files[name])

    def _state_place(self, description: Description) -> Path:
        check_no_link(place := self._place("checkpoints") / key_of(description))
        return place

    def _tidy(self, description: Description) -> None:
        """Remove what a run that is done left on its way, unless somebody does it once more."""
        place = self._state_place(description)
        if place.exists():
            with self.claim(description) as mine:
                if mine:
                    remove_checkpoint(place)

    def _counts(self, path: Path) -> bool:
        return not self._fresh or path in self._made

    def _note(self, path: Path) -> Path:
        self._made.add(path)
        return path

    def _distrust(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # the folder is a file, or a circle of links
            if path.exists() and path not in self.damaged:
                self.damaged.append(path)

    def run_path(self, description: Description) -> Path:
        """Return where the result of a run is, or would be."""
        return self._place("runs") / f"{key_of(description)}.json"

    def architecture_path(self, description: Description) -> Path:
        """Return where an architecture is, or would be."""
        return self._place("architectures") / f"{key_of(description)}.arch.safetensors"

    def network_path(self, description: Description) -> Path:
        """Return where a network is, or would be."""
        return self._place("networks") / f"{key_of(description)}.safetensors"

    def _place(self, name: str) -> Path:
        check_no_link(place := self.folder / name)
        return place


def _is_result(result: Any, description: Description) -> bool:
    """Tell whether a result holds what those of its kind do, so that a comparison can count on it."""
    if not isinstance(result, dict):
        return False
    json.dumps(result, ensure_ascii=False).encode()  # half a surrogate pair raises a ValueError
    kind = description.get("kind")
    if kind not in ("search", "transfer"):
        return True
    if not (result["failed"] is None or isinstance(result["failed"], str)):
        return False
    if kind == "transfer":
        fitted = [result[name] for name in ("connections", "empty_layers") if name in result]
        return (
            _is_number(result["accuracy"])
            and _is_number(result["train_loss"])
            and all(_is_count(count) for count in fitted)
        )
    number = len(description.get("sparsities", result["connections"]))
    counts = [result["steps"], *result["connections"], *result["empty_layers"]]
    layers = result.get("densities", [])
    return (
        all(_is_count(count) for count in counts)
        and len(result["connections"]) == len(result["empty_layers"]) == number
        and _is_number(result["loss"])
        and _is_number(result["accuracy"])
        and isinstance(layers, list)
        and all(isinstance(of_one, dict) for of_one in layers)
        and all(_is_number(density) for of_one in layers for density in of_one.values())
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_number(value: Any) -> bool:
    """Tell whether it is a number that a table can hold, or None for one that is not known."""
    return value is None or (type(value) in (int, float) and abs(value) < _LARGEST)


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"a run cannot be kept: {error}; describe it with text, finite numbers, lists and"
            " dictionaries with text as names"
        ) from error
