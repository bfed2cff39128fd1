"""What a kind of file has to tell to the fuzzer, and how its cases are written."""

import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from fuzz.mutate import join_safetensors, split_safetensors

LOADED, SET_ASIDE = "loaded", "set aside"


class Link(str):
    """A case's file that is a symbolic link to this."""


class Pipe(str):
    """A case's file that is a named pipe: whoever opens it waits for ever."""


# Each file of a case by its path below the folder of the case; None is a folder.
Case = dict[str | bytes, bytes | Link | Pipe | None]


class Target:
    """One kind of file.

    Attributes:
        name: What the table calls it.
    """

    name: ClassVar[str]

    @cached_property
    def good(self) -> Case:
        """A case that loads."""
        raise NotImplementedError

    def damage(self, rng: random.Random) -> Case:
        """Return a damaged case."""
        raise NotImplementedError

    def load(self, folder: Path) -> str:
        """Load the case that lies in `folder`; return LOADED or SET_ASIDE, or raise."""
        raise NotImplementedError


def write_case(case: Case, folder: Path) -> None:
    """Put the files of a case into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in case.items():
        path = os.path.join(os.fsencode(folder), os.fsencode(name))  # noqa: PTH118 - bytes
        os.makedirs(path if content is None else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        if isinstance(content, Link):
            os.symlink(content, path)  # noqa: PTH211 - bytes
        elif isinstance(content, Pipe):
            os.mkfifo(path)
        elif content is not None:
            with open(path, "wb") as file:  # noqa: PTH123 - bytes
                file.write(content)


def size_of(case: Case) -> int:
    """Count the bytes of a case."""
    return sum(len(content) for content in case.values() if type(content) is bytes)


def saved(save: Callable[[Path], object]) -> bytes:
    """Return what a function writes to the file that it is given."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "x"
        save(path)
        return settle(path)


def settle(path: Path) -> bytes:
    """Return the bytes of a file, the same each time.

    The safetensors library writes the notes in a header in an order that changes from run to run.
    """
    content = path.read_bytes()
    try:
        header, data = split_safetensors(content)
    except (ValueError, struct.error):
        return content
    return join_safetensors(json.dumps(header, sort_keys=True).encode(), data)
