"""`find` and `transfer` under torchrun: one result, one message, and states that others take up."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aprune.architecture import Architecture
from aprune.cli import main
from aprune.cli.option import with_room
from aprune.errors import ApruneWarning, DeviceError
from helpers import states_every, torchrun

FIND = "find --parent mlp --task digits --sparsity 0.5,0.9 --steps {steps} --out {out}"


def words(out: Path, steps: int) -> list[str]:
    return FIND.format(out=out, steps=steps).split()


@contextmanager
def started(processes: int, command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        torchrun(processes, "-m", "aprune", *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(complaint: str) -> list[str]:
    """What aprune says, and not the launcher."""
    return [line for line in complaint.splitlines() if line.startswith("aprune: ")]


def wait_for_states(out: Path, process: "subprocess.Popen[str]", steps: int = 0) -> int:
    """Wait until the search is under way."""
    while process.poll() is None:
        found = [int(path.stem.rpartition("-")[2]) for path in out.rglob("[!.]*.safetensors")]
        if found and max(found) > steps:
            return max(found)
        time.sleep(0.05)
    raise AssertionError(process.communicate())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the processes write their states every now and then."""
    monkeypatch.setenv("PYTHONPATH", str(states_every(0.3, tmp_path / "site")))


@pytest.mark.parametrize("which", [0, -1])
def test_one_that_dies_ends_all_and_others_go_on(which: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started(2, words(out, 100_000)) as process:
        wait_for_states(out, process)
        children = subprocess.run(
            ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
        ).stdout.split()
        os.kill(int(children[which]), signal.SIGKILL)
        printed, complaint = process.communicate(timeout=60)
    assert process.returncode != 0
    assert printed == ""
    assert said(complaint) == [
        "aprune: one of the 2 processes has ended or cannot be reached, so the others end too; the same"
        " command goes on from the last state that was written"
    ]
    reached = max(int(path.stem.rpartition("-")[2]) for path in out.rglob("*-0000-*.safetensors"))
    # another number of processes takes it up, and so does one alone
    with started(3, words(out, 100_000)) as process:
        later = wait_for_states(out, process, reached)
        process.terminate()
        _, complaint = process.communicate(timeout=60)
    assert later > reached
    assert said(complaint) == ["aprune: terminated; nothing was half-written"]
    states = sorted(out.rglob("*-0000-*.safetensors"))
    assert len(states) == 2
    assert int(states[-1].stem.rpartition("-")[2]) >= later


def test_result_of_several_is_written_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started(2, [*words(out, 60), "--json"]) as process:
        printed, complaint = process.communicate(timeout=120)
    assert (process.returncode, said(complaint)) == (0, [])
    document = json.loads(printed)  # one document, not two
    files = [Path(about["file"]) for about in document["architectures"]]
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(files)
    assert main([*words(tmp_path / "alone", 60), "--json"]) == 0
    for path in files:
        assert Architecture.load(path) == Architecture.load(tmp_path / "alone" / path.name)


def test_one_line_for_all(tmp_path: Path) -> None:
    with started(
        2, ["find", "--parent", "mlp", "--task", "nowhere", "--sparsity", "0.5"]
    ) as process:
        printed, complaint = process.communicate(timeout=120)
    assert (process.returncode, printed) == (1, "")
    (line,) = said(complaint)
    assert "nowhere" in line


def test_other_verbs_are_for_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["compare", "--parent", "mlp", "--from", "digits", "--to", "digits"]) == 2
    assert "only find and transfer" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")  # the other one says it
    assert main(["compare"]) == 2
    assert capsys.readouterr().err == ""


def test_several_do_not_halve_a_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    find = words(tmp_path / "out", 10)
    for command in (find, ["transfer", "--dense", "--parent", "mlp", "--task", "digits"]):
        assert main([*command, "--shrink-batch"]) == 2
        assert "torchrun has started 2: give a --batch that fits" in capsys.readouterr().err

    def lack(**_: object) -> None:
        raise DeviceError("too little memory: try batches of 4", 8)

    with pytest.raises(DeviceError, match=r"of 4 \(--batch 4\)$"):
        with_room(lack, {}, shrink=False)


def test_warnings_are_the_first_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aprune.cli.app import _show_warning

    for rank, expected in (("0", "aprune: careful\n"), ("1", "")):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        _show_warning(set(), ApruneWarning("careful"), ApruneWarning, "", 0)
        assert capsys.readouterr().err == expected
