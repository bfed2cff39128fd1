"""Loaders that do what none may do: the fuzzer has to catch each of them.

`python -m fuzz.traps` loads them and prints, as JSON, what was noticed of each.
"""

import contextlib
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors.numpy

from aprune.errors import FileError
from fuzz.run import fuzz
from fuzz.target import LOADED, Case, Target


class Trap(Target):
    """A loader that springs when its file is a damaged one."""

    def __init__(self, name: str, spring: Callable[[Path], object]) -> None:
        self.name = name  # type: ignore[misc]
        self._spring = spring

    @cached_property
    def good(self) -> Case:
        return {"x": b"good"}

    def damage(self, rng: random.Random) -> Case:
        return {"x": b"damaged"}

    def load(self, folder: Path) -> str:
        if (folder / "x").read_bytes() != b"good":
            self._spring(folder)
        return LOADED


def wait_for_ever(folder: Path) -> None:
    while True:
        time.sleep(0.1)


def fill_memory(folder: Path) -> None:
    np.ones(150 * 2**20, dtype=np.uint8)


def swallow_everything(folder: Path) -> None:
    with contextlib.suppress(BaseException):
        (folder.parent / "stray").write_text("x")
    if (folder.parent / "stray").exists():
        os.abort()  # it was noticed, but not stopped


def write_past_python(folder: Path) -> None:
    """Write as a library in C does, which no audit hook hears of."""
    safetensors.numpy.save_file({"a": np.zeros(1)}, folder.parent / "outside-of-it.safetensors")


class Shell:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("true",)


PICKLED = pickle.dumps(Shell())


def refuse(text: str) -> None:
    raise FileError(text)


TRAPS = (
    Trap("harmless", lambda folder: None),
    Trap("refusal", lambda folder: refuse("one line")),
    Trap("two lines", lambda folder: refuse("two\nlines")),
    Trap("endless message", lambda folder: refuse("x" * 10_000)),
    Trap("exception", lambda folder: {}["x"]),
    Trap("exit", lambda folder: sys.exit()),
    Trap("crash", lambda folder: os.abort()),
    Trap("hang", wait_for_ever),
    Trap("memory", fill_memory),
    Trap("stray write", lambda folder: (folder.parent / "stray").write_text("x")),
    Trap("swallowed write", swallow_everything),
    Trap("write past Python", write_past_python),
    Trap("path upwards", lambda folder: (folder / ".." / "stray").write_text("x")),
    Trap("removal", lambda folder: (folder.parent / "log").unlink()),
    Trap("stray read", lambda folder: Path("/etc/passwd").read_bytes()),
    Trap("program", lambda folder: subprocess.run(["true"], check=True)),
    Trap("shell", lambda folder: os.system("true")),
    Trap("connection", lambda folder: socket.create_connection(("127.0.0.1", 9))),
    Trap("code", lambda folder: exec(compile("a = 1", "x", "exec"))),
    Trap("pickle", lambda folder: pickle.loads(PICKLED)),
)


def main() -> None:
    report = fuzz(TRAPS, range(len(TRAPS)), patience=2.0)
    noticed = {trap.name: "" for trap in TRAPS}
    noticed |= {failure.kind: failure.what for failure in report.failures}
    print(json.dumps(noticed))


if __name__ == "__main__":
    main()
