"""Kill searches, retrainings and a small `reproduce` at random moments, and see that nothing shows.

    PYTHONPATH=tests python -m kill.run --kills 200 --seed 0

Each command is first run undisturbed. Then it is started again and again and killed with SIGKILL after
a random time, until it comes to its end; its files must then be those of the undisturbed run, byte for
byte. States are written every few milliseconds here, so that most kills meet one that is being written.

The processes are real ones. They are forked from one that has imported everything, since that takes
longer than the work.
"""

import argparse
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aprune.cli import main as aprune
from aprune.training import checkpoint

_INTERVAL = 0.005  # seconds
_IMPORTS = (
    "aprune.finding aprune.bulk aprune.experiments.paper sklearn.datasets pandas pyarrow.parquet"
    " matplotlib.pyplot matplotlib.backends.backend_pdf torch._dynamo scipy.stats rich.table"
)
_MOST = 500  # starts of one command: more means that it does not get on

_FIND = "find --parent {parent} --task digits --classes 0,1,2 --method {method} --sparsity 0.5,0.9"
_FIND += " --steps {steps} --batch 32 --weights --out {out}"
_TRANSFER = "transfer {arch} --task digits --classes 5,6,7 --images 60 --steps 120 --batch 32"
_TRANSFER += " --out {out}/model.safetensors"
_COMMANDS = {
    "find, AP": _FIND.format(parent="conv_bn", method="ap", steps=100, out="{out}"),
    "find, IMP": _FIND.format(parent="conv_bn", method="imp", steps=100, out="{out}"),
    "find, RigL": _FIND.format(parent="mlp", method="rigl", steps=150, out="{out}"),
    "transfer": _TRANSFER,
    "transfer, bare": f"{_TRANSFER} --bare",
    "reproduce": "reproduce figure7 --scale small --parent mlp --budget quick --seeds 1"
    " --sparsity 0.9 --out {out}",
}


@dataclass
class Work:
    """A command, and what became of it."""

    name: str
    command: str
    seconds: float = 0.0
    runs: int = 0
    kills: int = 0
    resumed: int = 0
    failures: list[str] = field(default_factory=list)


def main() -> int:
    """Return 0 if all runs ended like the undisturbed ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="in all, shared out")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    for name in _IMPORTS.split():
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["APRUNE_CACHE"] = f"{folder}/cache"
        arch = _find_architecture(Path(folder) / "archs")
        works = [Work(name, command) for name, command in _COMMANDS.items()]
        for place, work in enumerate(works):
            share = chosen.kills * (place + 1) // len(works) - chosen.kills * place // len(works)
            _torment(work, share, Path(folder) / str(place), arch, chance)
            _print_row(work, first=place == 0)
    kills, failures = sum(w.kills for w in works), [f for w in works for f in w.failures]
    resumed = sum(w.resumed for w in works)
    print(f"{kills} kills, {resumed} starts from a state, {len(failures)} differences")
    for failure in failures:
        print(f"  {failure}")
    return 1 if failures or kills < chosen.kills else 0


def _torment(work: Work, kills: int, folder: Path, arch: Path, chance: random.Random) -> None:
    whole = folder / "whole"
    begin = time.monotonic()
    _, complaint = _start(work, whole, arch, folder).wait()
    work.seconds = time.monotonic() - begin
    expected = _files(whole)
    if complaint:
        work.failures.append(f"{work.name}, undisturbed: {complaint}")
        return
    while work.kills < kills:
        work.runs += 1
        out = folder / str(work.runs)
        for _ in range(_MOST):
            work.resumed += any(out.rglob("checkpoints/**/[!.]*.safetensors"))
            patience = chance.uniform(0.0, work.seconds) if work.kills < kills else None
            process = _start(work, out, arch, folder)
            killed, complaint = process.wait(patience)
            work.kills += killed
            if complaint:
                work.failures.append(f"{work.name}, run {work.runs}: {complaint}")
                return
            if not killed:
                break
        found = _files(out)
        odd = [n for n in sorted(expected.keys() | found.keys()) if expected.get(n) != found.get(n)]
        work.failures += [f"{work.name}, run {work.runs}: {name} differs" for name in odd]


class Process:
    """A child that works on, and what it says on stderr."""

    def __init__(self, work: Callable[[], int], errors: Path) -> None:
        self._errors = errors
        self._pid = os.fork()
        if self._pid == 0:
            for stream, path in ((1, os.devnull), (2, errors)):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, stream)
            os._exit(work())

    def wait(self, patience: float | None = None) -> tuple[bool, str]:
        """Wait, or kill it after a while; return whether that was so, and what there is to say."""
        if patience is not None:
            time.sleep(patience)
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        if os.WIFSIGNALED(status) and patience is not None:
            return True, ""
        said = self._errors.read_text(encoding="utf-8").strip()
        code = os.waitstatus_to_exitcode(status)
        return False, f"status {code}: {said}" if code or said else ""


def _start(work: Work, out: Path, arch: Path, folder: Path) -> Process:
    words = work.command.format(out=out, arch=arch).split()

    def run() -> int:
        checkpoint.INTERVAL, checkpoint.SHARE = _INTERVAL, float("inf")
        return aprune(words)

    out.mkdir(parents=True, exist_ok=True)
    return Process(run, folder / "stderr")


def _find_architecture(out: Path) -> Path:
    # in a child too: whoever forks must not have trained
    words = "find --parent conv_bn --task digits --classes 0,1,2 --method random --sparsity 0.8"
    Process(lambda: aprune([*words.split(), "--out", str(out)]), out.parent / "stderr").wait()
    return next(out.glob("*.arch.safetensors"))


def _files(folder: Path) -> dict[str, bytes]:
    """Read all files: what was half written when a process was killed must be gone too."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _print_row(work: Work, *, first: bool) -> None:
    if first:
        print("command         seconds  kills  runs  from a state  differences")
    print(
        f"{work.name:15} {work.seconds:7.1f} {work.kills:6} {work.runs:5} {work.resumed:13}"
        f" {len(work.failures):12}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
