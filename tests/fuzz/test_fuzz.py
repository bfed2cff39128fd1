"""Some hundred damaged files of every kind, and that the fuzzer would notice if one did harm."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, since the audit hook of the fuzzer stays for ever."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=300,
    )


def test_no_damaged_file_does_harm(tmp_path: Path) -> None:
    done = run("-m", "fuzz.run", "--cases", "500", "--jobs", "1", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = (line for line in done.stdout.splitlines() if line.startswith("| all |"))
    assert total.split(" | ")[1] == "500"
    # every kind has cases that load and cases that do not
    for line in done.stdout.splitlines()[2:12]:
        cells = line.strip("| ").split(" | ")
        assert 0 < int(cells[2]) < int(cells[1]) == 50, line


def test_what_does_harm_is_noticed() -> None:
    done = run("-m", "fuzz.traps")
    assert done.returncode == 0, done.stdout + done.stderr
    noticed = json.loads(done.stdout)
    expected = {
        "harmless": "",
        "refusal": "",
        "two lines": "FileError: not one printable line",
        "endless message": "FileError: 10000 characters",
        "exception": "KeyError: ",
        "exit": "SystemExit: ",
        "crash": "crash: exit status -6",
        "hang": "hang: after 2.0 s",
        "memory": "memory: 15",
        "stray write": "violation: stray write to ",
        "swallowed write": "violation: stray write to ",
        "write past Python": "stray file: ",
        "path upwards": "violation: stray write to ",
        "removal": "violation: stray os.remove",
        "stray read": "violation: stray read of '/etc/passwd'",
        "program": "violation: subprocess.Popen",
        "shell": "violation: os.system",
        "connection": "violation: socket.",
        "code": "violation: code executed from x",
        "pickle": "violation: pickle.find_class",
    }
    assert list(noticed) == list(expected)
    for name, what in noticed.items():
        assert what.startswith(expected[name]), (name, what)
        assert bool(what) == bool(expected[name]), (name, what)


def test_a_case_follows_from_its_number() -> None:
    """In another process too, where the safetensors library writes notes in another order."""
    code = "from fuzz.test_fuzz import hash_cases; print(hash_cases(0))"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hash_cases(0) != hash_cases(1)


def hash_cases(seed: int) -> str:
    from fuzz.run import draw
    from fuzz.targets import TARGETS

    cases = [draw(TARGETS, case, seed)[1] for case in range(10 * len(TARGETS))]
    return hashlib.sha256(repr(cases).encode()).hexdigest()


@pytest.mark.parametrize("content", [b"", b"x", bytes(1000)])
def test_anything_can_be_damaged(content: bytes) -> None:
    from fuzz.mutate import damage

    rng = random.Random(0)
    assert len({damage(rng, content) for _ in range(300)}) > 50


def test_a_damaged_png_has_checksums_that_fit() -> None:
    from fuzz.data import encode
    from fuzz.picture import join_png, split_png

    good = encode("PNG")
    assert join_png(split_png(good)) == good
