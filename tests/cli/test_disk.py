"""A disk that is full or cannot be written to: a real one, made small for the purpose.

It is a file system in memory, in a name space of the test's own. Where a machine allows no such thing, a
limit on the size of files takes its place, which gives the same kind of error.
"""

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aprune.cli import main
from aprune.errors import FileError
from aprune.files import writing
from helpers import states_every

FIND = "find --parent conv --task digits --classes 0,1,2 --sparsity 0.9 --steps 60 --device cpu"
COMPARE = (
    "compare --parent mlp --from digits --from-classes 0,1 --to digits --classes 2,3 --images 50"
    " --methods ap,random --sparsity 0.9 --seeds 1 --lrs 0.1 --search-steps 60 --steps 60 --device cpu"
)
# Runs commands on a small disk, and says how each ended.
SCRIPT = """
import json, os, resource, subprocess, sys
place, commands, real, keep = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "real", sys.argv[4]
os.makedirs(place, exist_ok=True)
def resize(size):
    if real:
        options = f"size={size}k" if not os.path.ismount(place) else f"remount,size={size}k"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
def limit():
    if not real:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * size, 1024 * size))
ended = []
for size, words in commands:
    resize(size)
    done = subprocess.run([sys.executable, "-m", "aprune", *words], capture_output=True, text=True,
                          preexec_fn=limit)
    files = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            files[os.path.relpath(path, place)] = os.path.getsize(path)
    ended.append([done.returncode, done.stdout, done.stderr, files])
subprocess.run(["cp", "-r", place, keep], check=True)
print(json.dumps(ended))
"""
NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = [*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


Ended = tuple[int, str, str, dict[str, int]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[..., list[Ended]]:
    """Runs commands whose files go to a disk of so many kilobytes; a copy of it is in `kept`."""
    real = can_mount()

    def run(*commands: tuple[int, str]) -> list[Ended]:
        listed = [
            [size, [*words.split(), "--out", str(tmp_path / "disk")]] for size, words in commands
        ]
        python = [sys.executable, "-c", SCRIPT, str(tmp_path / "disk"), json.dumps(listed)]
        python += ["real" if real else "limited", str(tmp_path / "kept")]
        done = subprocess.run(
            [*(NAMESPACE if real else []), *python], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [tuple(one) for one in json.loads(done.stdout)]  # type: ignore[misc]

    return run


FULL = ("No space left on device", "File too large")


def test_a_result_that_does_not_fit(small_disk: Callable[..., list[Ended]]) -> None:
    # the architecture takes 8 kB and fits; the weights do not
    ((status, printed, complaint, files),) = small_disk((20, f"{FIND} --weights"))
    assert (status, printed) == (2, "")
    line = complaint.splitlines()[-1]
    assert line.startswith("aprune: cannot write ")
    assert any(reason in line for reason in FULL)
    assert not any(name.endswith(".model.safetensors") for name in files)
    assert not any(Path(name).name.startswith(".") for name in files)  # no half of it either


def test_states_that_do_not_fit_are_done_without(
    small_disk: Callable[..., list[Ended]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(states_every(0.0, tmp_path / "site")))
    ((status, printed, complaint, files),) = small_disk((32, FIND))
    assert status == 0
    assert "The search took 60 steps" in printed
    (line,) = complaint.splitlines()  # once, not at every state
    assert any(reason in line for reason in FULL)
    assert line.endswith("the work goes on, but may not be resumed from here")
    assert list(files) == ["conv-digits-ap-0.9-seed0.arch.safetensors"]


def test_what_was_done_before_the_disk_was_full_is_not_lost(
    small_disk: Callable[..., list[Ended]], tmp_path: Path
) -> None:
    first, second = small_disk((12, COMPARE), (4096, f"{COMPARE} --json"))
    assert (first[0], first[1]) == (2, "")
    (line,) = first[2].splitlines()
    assert any(reason in line for reason in FULL)
    assert not any(Path(name).name.startswith(".") for name in first[3])
    assert (second[0], second[2]) == (0, "")  # nothing was damaged
    assert main([*COMPARE.split(), "--out", str(tmp_path / "whole")]) == 0
    kept, whole = tmp_path / "kept", tmp_path / "whole"
    for path in whole.rglob("*.json"):
        assert (kept / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert (kept / "rows.parquet").read_bytes() == (whole / "rows.parquet").read_bytes()


def test_advice_fits_the_reason(tmp_path: Path) -> None:
    for number, advice in (
        (errno.ENOSPC, "make room and run the same again"),
        (errno.EACCES, "choose another place"),
    ):
        with pytest.raises(FileError, match=advice), writing(tmp_path / "somewhere"):
            raise OSError(number, "reason")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [FIND, COMPARE])
def test_a_read_only_disk_is_refused_before_any_work(words: str, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    command = [sys.executable, "-m", "aprune", *words.split(), "--out", str(place / "out")]
    if can_mount():
        mount = f"mount -t tmpfs -o ro none {place} && exec "
        command = [*NAMESPACE, "sh", "-c", mount + '"$@"', "sh", *command]
    else:
        place.rmdir()
        place.write_text("")  # not a folder: as little can be written there
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("aprune: cannot write ")
    assert done.stderr.count("\n") == 1
    assert "choose another place with --out" in done.stderr
