"""Commands that are stopped by signals, full disks and the like, and go on when they are given again."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_FIND = "find --parent mlp --task digits --classes 0,1,2 --sparsity 0.9 --steps 80 --batch 16"
FIND = _FIND.split()
STEPS = 80

# Says when it has done 40 steps, and gives a signal the time to come.
PAUSE = """
import sys, time
from aprune.cli import main
from aprune.training.update import PlainUpdate

move, steps = PlainUpdate.move, []
def pausing(self):
    move(self)
    steps.append(1)
    if len(steps) == 40:
        print("here", flush=True)
        time.sleep(5)
PlainUpdate.move = pausing
raise SystemExit(main())
"""


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PAUSE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell lets what it starts in the background ignore the interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_signals(
    number: signal.Signals,
    status: int,
    word: str,
    aprune: Callable[..., Any],
    tmp_path: Path,
    steps: list[int],
) -> None:
    """The step under way is finished and its state is written, however long ago the last one was."""
    out = tmp_path / "out"
    process = _start(*FIND, "--out", out)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    printed, complaint = process.communicate(timeout=60)
    assert (process.returncode, printed) == (status, "")
    assert complaint == f"aprune: {word}; nothing was half-written\n"
    (state,) = _files(out)
    assert state.startswith("checkpoints/mlp-digits-ap-0.9-seed0/")
    done = int(state.split("-")[-1].split(".")[0])
    assert done == 40

    ended = aprune(*FIND, "--out", out)
    assert (ended.status, ended.err) == (0, "")
    assert len(steps) == STEPS - done
    assert aprune(*FIND, "--out", tmp_path / "whole").status == 0
    assert _files(out) == _files(tmp_path / "whole")
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_find(
    fresh: bool, aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    out, find = tmp_path / "out", (*FIND, "--weights")
    stop(21, *find, "--out", out)
    steps.clear()
    assert aprune(*find, "--out", out, *(["--fresh"] if fresh else [])).status == 0
    assert len(steps) == (STEPS if fresh else STEPS - 20)
    names = {path.name for path in out.iterdir()}
    assert names == {f"mlp-digits-ap-0.9-seed0.{end}.safetensors" for end in ("arch", "model")}


def test_other_settings_begin_anew(
    aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    stop(21, *FIND, "--out", tmp_path)
    steps.clear()
    assert aprune(*FIND, "--lr", "0.02", "--out", tmp_path).status == 0
    assert len(steps) == STEPS


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_transfer(
    keeps: bool,
    fresh: bool,
    aprune: Callable[..., Any],
    stop: Any,
    steps: list[int],
    arch: Path,
    tmp_path: Path,
) -> None:
    """The state is beside the model, or where caches are if no model is written."""
    retrain = ["transfer", arch, "--task", "digits", "--classes", "5,6,7", "--images", 30]
    retrain += [
        "--steps",
        STEPS,
        "--json",
        *(["--out", tmp_path / "m.safetensors"] if keeps else []),
    ]
    stop(31, *retrain)
    place = tmp_path if keeps else Path(os.environ["APRUNE_CACHE"])
    assert len(_files(place / "checkpoints")) == 2
    steps.clear()
    ended = aprune(*retrain, *(["--fresh"] if fresh else []))
    assert len(steps) == (STEPS if fresh else STEPS - 30)
    assert not (place / "checkpoints").exists()
    assert json.loads(ended.out) == json.loads(aprune(*retrain).out)


def test_damage_is_told_in_one_line(
    aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    stop(21, *FIND, "--out", tmp_path)
    newest = sorted(tmp_path.rglob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    steps.clear()
    ended = subprocess.run(
        [sys.executable, "-m", "aprune", *FIND, "--out", tmp_path], capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert ended.stderr == (
        f"aprune: {newest} is damaged: going on from what was written before it\n"
    )


def test_damage_without_anything_before_it_is_a_new_beginning(
    stop: Any, steps: list[int], tmp_path: Path
) -> None:
    stop(21, *FIND, "--out", tmp_path)
    newest, *older = sorted(tmp_path.rglob("*.safetensors"), reverse=True)
    for path in older:
        path.unlink()
    newest.write_bytes(newest.read_bytes()[:-1])
    ended = subprocess.run(
        [sys.executable, "-m", "aprune", *FIND, "--out", tmp_path], capture_output=True, text=True
    )
    assert ended.stderr == f"aprune: {newest} is damaged: going on from the beginning\n"


def test_a_command_with_other_settings_leaves_the_state_alone(
    aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    """Which goes to the same folder, as the files of both have the same names."""
    stop(31, *FIND, "--out", tmp_path / "archs")
    found = tmp_path / "archs/mlp-digits-ap-0.9-seed0.arch.safetensors"
    kept = _files(tmp_path)
    assert len(kept) == 2
    short = [word if word != "80" else "7" for word in FIND]
    assert aprune(*short, "--out", tmp_path / "archs").status == 0
    assert kept.items() <= _files(tmp_path).items()
    retrain = ["transfer", found, "--task", "digits", "--classes", "5,6", "--images", "30"]
    retrain += ["--out", tmp_path / "model/m.safetensors"]
    stop(31, *retrain, "--steps", STEPS)
    (tmp_path / "model/checkpoints/m.safetensors/.half-written").touch()
    kept |= {name: data for name, data in _files(tmp_path).items() if "model/" in name}
    assert aprune(*retrain, "--steps", 7).status == 0
    (half,) = kept.keys() - _files(tmp_path).keys()  # what is nobody's state goes
    assert half.endswith("half-written")
    steps.clear()
    assert aprune(*retrain, "--steps", STEPS).status == 0
    assert aprune(*FIND, "--out", tmp_path / "archs").status == 0
    assert len(steps) == 2 * (STEPS - 30)  # both went on from where they were
    assert not list(tmp_path.rglob("checkpoints"))


def test_full_disk(aprune: Callable[..., Any], tmp_path: Path) -> None:
    """No room for a state, but for the architecture: the search is done all the same."""
    code = "import sys; from aprune.training import checkpoint; from aprune.cli import main;"
    code += "checkpoint.INTERVAL, checkpoint.SHARE = 0, 9e9; raise SystemExit(main(sys.argv[1:]))"
    out, room = tmp_path / "out", 100_000  # bytes of a file
    ended = subprocess.run(
        [sys.executable, "-c", code, *FIND, "--out", out],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith(
        f"aprune: cannot write {out}/checkpoints/mlp-digits-ap-0.9-seed0/"
    )
    assert ended.stderr.endswith(
        ": File too large; the work goes on, but may not be resumed from here\n"
    )
    assert ended.stderr.count("\n") == 1
    assert aprune(*FIND, "--out", tmp_path / "whole").status == 0
    assert _files(out) == _files(tmp_path / "whole")


_TINY = (
    "compare --parent mlp --from digits --from-classes 0,1 --to digits --classes 2,3 --images 20"
    " --methods ap,imp,dense --sparsity 0.9 --seeds 2 --lrs 0.1 --steps 10 --search-steps 20"
)
TINY = _TINY.split()


def test_comparison(
    aprune: Callable[..., Any], stop: Any, steps: list[int], tmp_path: Path
) -> None:
    """It goes on within a run, and not only between them."""
    out = tmp_path / "out"
    stopped = 0
    for wanted in (15, 33, 20):  # in the first search, then in the third, then in a retraining
        before = len(steps)
        stop(wanted, *TINY, "--out", out)
        stopped += len(steps) - before - 1  # the last was not finished
        assert len(list((out / "checkpoints").iterdir())) == 1
    steps.clear()
    assert aprune(*TINY, "--out", out).status == 0
    resumed = len(steps)
    steps.clear()
    assert aprune(*TINY, "--out", tmp_path / "whole").status == 0
    assert stopped + resumed == len(steps) == 2 * (20 + 20) + 6 * 10
    assert _files(out) == _files(tmp_path / "whole")
    steps.clear()
    assert aprune(*TINY, "--out", out).status == 0
    assert len(steps) == 0
    assert aprune(*TINY, "--out", out, "--fresh").status == 0
    assert len(steps) == 2 * (20 + 20) + 6 * 10
    assert _files(out) == _files(tmp_path / "whole")
