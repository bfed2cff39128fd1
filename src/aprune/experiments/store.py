"""Finished runs as files: a run that is there is not run again.

A run is described by everything that determines it. The hash of that description names its file, so
that starting over after an interruption finds what was done, and a changed setting finds nothing.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aprune.architecture import Architecture
from aprune.errors import ArchitectureError, FileError, SettingError
from aprune.files import writing
from aprune.parents import parent_names
from aprune.trained import Trained, load_model

Description = Mapping[str, Any]


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
    with their weights, where they are asked for, in `networks/<key>.safetensors`. Files are written
    whole or not at all; one that is damaged, half copied or of another run counts as absent.

    Args:
        folder: Where to keep them; it is made with the first file.

    Attributes:
        damaged: The files that were found and not believed, in the order in which they were met.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.put({"seed": 0}, {"accuracy": 0.9})
        >>> store.get({"seed": 0}), store.get({"seed": 1})
        ({'accuracy': 0.9}, None)
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.damaged: list[Path] = []

    def get(self, description: Description) -> dict[str, Any] | None:
        """Return the result of the run so described, or None if there is none."""
        path = self._run_path(description)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            whole = entry["checksum"] == _digest(entry["result"])
            same = _canonical(entry["description"]) == _canonical(description)
            if whole and same and isinstance(entry["result"], dict):
                return entry["result"]
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
        with writing(self._run_path(description)) as temporary:
            temporary.write_text(json.dumps(entry, indent=1), encoding="utf-8")

    def get_architecture(self, description: Description) -> Architecture | None:
        """Return the architecture so described, or None if there is none."""
        path = self._architecture_path(description)
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
        marked.save(self._architecture_path(description))

    def get_network(self, description: Description, parent: str) -> Trained | None:
        """Return the network so described, on the CPU, or None if there is none."""
        path = self._network_path(description)
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
        replace(network, provenance=provenance).save(self._network_path(description))

    def _distrust(self, path: Path) -> None:
        if path.exists() and path not in self.damaged:
            self.damaged.append(path)

    def _run_path(self, description: Description) -> Path:
        return self.folder / "runs" / f"{key_of(description)}.json"

    def _architecture_path(self, description: Description) -> Path:
        return self.folder / "architectures" / f"{key_of(description)}.arch.safetensors"

    def _network_path(self, description: Description) -> Path:
        return self.folder / "networks" / f"{key_of(description)}.safetensors"


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
