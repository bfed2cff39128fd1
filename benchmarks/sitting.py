"""One sitting on a GPU: several processes do the same commands on one store, whose runs are packed.

They share the runs, and the GPU by CUDA's Multi-Process Service where that is installed. Each begins
with another command, and helps with the others when that is done. All runs that are there go into
`runs.tar.xz`, which is written anew every minute, so that little is lost with a machine that is taken
away. It is the `--archive` of the next sitting, which does none of them again.

    python benchmarks/sitting.py --archive results/paper/vgg19-runs.tar.xz --out paper --minutes 27 \
        "reproduce figure3 --parent vgg19" "reproduce figure2 --parent vgg19"
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from aprune.files import writing

_PACKED_EVERY = 60.0  # seconds
_SPARE = 20.0  # seconds at the end, to write and to pack


def main() -> int:
    ask = read_arguments()
    begin = time.monotonic()
    ask.out.mkdir(parents=True, exist_ok=True)
    if ask.archive is not None:
        with tarfile.open(ask.archive) as archive:
            archive.extractall(ask.out, filter="data")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = len(find_runs(ask.out))
    with sharing_the_gpu(), contextlib.ExitStack() as stack:
        stack.callback(pack, ask.out)  # when all have stopped, however it ends
        workers = [Worker(ask, place, begin) for place in range(ask.processes)]
        for worker in workers:
            stack.callback(worker.stop)
        told = begin
        while sum(worker.works() for worker in workers):  # each is asked, so that all go on
            time.sleep(1.0)
            if time.monotonic() - told > _PACKED_EVERY:
                pack(ask.out)
                tell(ask.out, before, begin)
                told = time.monotonic()
    tell(ask.out, before, begin)
    return max(worker.status for worker in workers)


class Worker:
    """A process that does one command after the other, beginning somewhere in the list."""

    def __init__(self, ask: argparse.Namespace, place: int, begin: float) -> None:
        self.status = 0
        self._todo = deque(ask.command)
        self._todo.rotate(-place)
        self._out: Path = ask.out
        self._log = ask.out / f"process{place}.log"
        self._end = begin + 60 * ask.minutes - _SPARE
        self._process: subprocess.Popen[bytes] | None = None

    def works(self) -> bool:
        """Tell whether it has something to do, after starting the next command if need be."""
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return True
            self.status = max(self.status, abs(status))
            self._process = None
        left = self._end - time.monotonic()
        if not self._todo or left <= 0:
            return False
        more = ["--out", str(self._out), "--time-limit", f"{left:.0f}"]
        command = [sys.executable, "-m", "aprune", *shlex.split(self._todo.popleft()), *more]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return True

    def stop(self) -> None:
        """End what is under way; its state is kept."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


@contextlib.contextmanager
def sharing_the_gpu() -> Iterator[None]:
    """Let processes compute at the same time, and not in turns."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    subprocess.run([control, "-d"], check=False, capture_output=True)  # one may be there already
    try:
        yield
    finally:
        subprocess.run([control], input=b"quit\n", check=False, capture_output=True)


def find_runs(out: Path) -> list[Path]:
    return sorted(out.glob("runs/[!.]*.json"))


def pack(out: Path) -> None:
    """Write an archive of all runs, which depends on nothing else."""
    whole = writing(out / "runs.tar.xz")
    with whole as temporary, tarfile.open(temporary, "w:xz", preset=9) as archive:
        for path in find_runs(out):
            archive.add(path, f"runs/{path.name}", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


def tell(out: Path, before: int, begin: float) -> None:
    minutes = (time.monotonic() - begin) / 60
    new = len(find_runs(out)) - before
    found = len([*out.glob("architectures/[!.]*")])
    pace = f"{new / minutes:.1f} a minute"
    print(f"{minutes:.1f} min: {new} new runs, {pace}; {found} architectures{_watts()}", flush=True)


def _watts() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    ask = ["nvidia-smi", "--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader"]
    told = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    return f"; {told.splitlines()[0]}" if told else ""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="+", help="of aprune, in quotes, without --out")
    parser.add_argument("--out", type=Path, required=True, help="the store that they share")
    parser.add_argument("--archive", type=Path, help="earlier runs, unpacked there first")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=27.0, help="for all of it")
    return parser.parse_args()


if __name__ == "__main__":
    # each has its own thread for launching; what they share is the GPU
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
