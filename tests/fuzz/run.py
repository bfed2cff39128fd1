"""The fuzzer: damaged files, loaded one by one in processes that may die.

    make fuzz                                         100,000 files, some minutes
    PYTHONPATH=tests python -m fuzz.run --case 1234    one of them again, with its traceback

Each case follows from its number and the seed. Good outcomes are a load, a file that is set aside as
damaged, and an error of aprune's of one line. Anything else is a failure: another exception, a
crash, a hang, memory beyond what the size of the file allows, a file read or written elsewhere, a
program or a connection started, code from elsewhere. Its files are kept, and the exit status is 1.
"""

import argparse
import faulthandler
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from aprune.errors import ApruneError
from aprune.progress import bar
from fuzz.target import LOADED, SET_ASIDE, Target, size_of, write_case
from fuzz.watch import Violation, Watch, read_peak, reset_peak

FLOOR = 64 * 2**20  # bytes of memory that a load may take whatever the size of its file
FACTOR = 16_000  # and for each byte of the file
_ADDRESSES = 6 * 2**30  # what a worker may ask for beyond what it has: this machine shall survive
_LONGEST = 700  # characters of an error, which may also quote what it was given
_READY = 120  # seconds in which a worker must have made its good files


@dataclass(frozen=True)
class Failure:
    """A case that ended as none may."""

    case: int
    kind: str
    what: str
    kept: str = ""


@dataclass
class Report:
    """How all cases ended."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def table(self) -> str:
        """Write the outcomes of each kind."""
        kinds = list(dict.fromkeys(kind for kind, _ in self.outcomes))
        ends = sorted({end for _, end in self.outcomes}, key=lambda end: (end != LOADED, end))
        rows = [["kind", "cases", *ends]]
        for kind in [*kinds, "all"]:
            numbers = [
                sum(n for (k, e), n in self.outcomes.items() if e == end and kind in (k, "all"))
                for end in ends
            ]
            rows.append([kind, *(f"{n:,}" for n in (sum(numbers), *numbers))])
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], f"| --- |{' ---: |' * (len(ends) + 1)}", *lines[1:]])


def fuzz(
    targets: Sequence[Target],
    cases: Sequence[int],
    *,
    seed: int = 0,
    jobs: int = 2,
    patience: float = 20.0,
    keep: Path | None = None,
) -> Report:
    """Load all cases in worker processes.

    Args:
        targets: The kinds; they take turns.
        cases: Numbers of cases.
        seed: What they are drawn from.
        jobs: Processes at a time.
        patience: Seconds after which a load counts as a hang.
        keep: Where the files of failures go.

    Returns:
        How they ended.
    """
    report = Report()
    with tempfile.TemporaryDirectory(prefix="aprune-fuzz-") as place:
        workers = [
            _Worker(targets, list(cases[job::jobs]), seed, Path(place) / str(job))
            for job in range(min(jobs, len(cases)))
        ]
        with bar("damaged files", len(cases)) as advance:
            while alive := [worker for worker in workers if worker.left]:
                wait([w.pipe for w in alive] + [w.process.sentinel for w in alive], timeout=0.2)
                for worker in alive:
                    done = worker.collect(patience)
                    for case, end, what in done:
                        kind = targets[case % len(targets)].name
                        report.outcomes[kind, end] += 1
                        if what:
                            kept = _keep(keep, targets, case, seed)
                            report.failures.append(Failure(case, kind, f"{end}: {what}", kept))
                    advance(len(done), note=f"{len(report.failures)} failures")
    return report


def draw(targets: Sequence[Target], case: int, seed: int) -> tuple[Target, Any]:
    """Return the kind of a case and its files."""
    target = targets[case % len(targets)]
    return target, target.damage(random.Random(f"{seed} {case}"))


class _Worker:
    """A process that goes through its cases, and is started again behind one that killed it."""

    def __init__(self, targets: Sequence[Target], cases: list[int], seed: int, place: Path) -> None:
        self._targets, self._seed, self._place = targets, seed, place
        self.left = cases
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_work, args=(self._targets, self.left, self._seed, self._place, theirs)
        )
        self.process.start()
        theirs.close()
        if not self.pipe.poll(_READY) or not _is_ready(self.pipe):
            self.process.kill()
            log = (self._place / "log").read_text(errors="replace")
            raise RuntimeError(f"a worker could not load its good files:\n{log}")
        self._since = time.monotonic()

    def collect(self, patience: float) -> list[tuple[int, str, str]]:
        """Return which cases have ended, and how."""
        done: list[tuple[int, str, str]] = []
        died = not self.process.is_alive()
        try:
            while self.pipe.poll():
                done.append(self.pipe.recv())
                self._since = time.monotonic()
        except EOFError:
            died = True
        self.left = self.left[len(done) :]
        if not self.left:
            self.process.join()
            return done
        hangs = time.monotonic() - self._since > patience
        if hangs:
            self.process.kill()
        if died or hangs:
            self.process.join()
            code = self.process.exitcode
            end = ("hang", f"after {patience} s") if hangs else ("crash", f"exit status {code}")
            done.append((self.left[0], *end))
            self.left = self.left[1:]
            if self.left:
                self._start()
        return done


def _is_ready(pipe: Connection) -> bool:
    try:
        pipe.recv()
    except EOFError:
        return False
    return True


def _work(
    targets: Sequence[Target], cases: Sequence[int], seed: int, place: Path, pipe: Connection
) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    os.chdir(place)
    os.environ["APRUNE_CACHE"] = str(place / "case")
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)  # some libraries complain there
    faulthandler.enable()
    folder = place / "case"
    used = dict.fromkeys(targets[case % len(targets)] for case in cases[: 2 * len(targets)])
    for target in used:
        write_case(target.good, folder)
        end = target.load(folder)
        assert end == LOADED, f"the good case of {target.name} is {end}"
        target.damage(random.Random(0))  # makes what it makes only once
    watch = Watch(folder)
    _limit_addresses()
    (place.parent / "outside").mkdir(exist_ok=True)
    there = _list(place)
    pipe.send(None)
    for case in cases:
        pipe.send((case, *_try(targets, case, seed, folder, watch, there)))


def _try(
    targets: Sequence[Target], case: int, seed: int, folder: Path, watch: Watch, there: set[str]
) -> tuple[str, str]:
    """Load one case; return how it ended, and what is wrong with that if anything is."""
    target, files = draw(targets, case, seed)
    write_case(files, folder)
    before = reset_peak()
    end, what = _load(target, folder, watch, _LONGEST + size_of(files))
    took = read_peak() - before
    if watch.seen:
        end, what = "violation", watch.seen[0]
    elif took > FLOOR + FACTOR * size_of(files):
        end, what = "memory", f"{took / 2**20:.0f} MB for {size_of(files):,} bytes"
    elif stray := sorted(_list(folder.parent) ^ there):
        end, what = "stray file", str(stray)
        for path in stray:  # that the next case is not blamed for it
            Path(path).unlink(missing_ok=True)
    return end, what


def _load(target: Target, folder: Path, watch: Watch, longest: int) -> tuple[str, str]:
    try:
        with watch.on():
            end = target.load(folder)
    except ApruneError as error:
        return type(error).__name__, _find_fault(str(error), longest)
    except Violation as violation:
        return "violation", str(violation)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return type(error).__name__, f"{str(error)[:200]!r} at {where}"
    return end, "" if end in (LOADED, SET_ASIDE) else "no outcome"


def _find_fault(message: str, longest: int) -> str:
    """Say what is wrong with an error message, if anything is."""
    if not message.isprintable():
        return f"not one printable line: {message[:200]!r}"
    return f"{len(message)} characters: {message[:200]!r}" if len(message) > longest else ""


def _list(place: Path) -> set[str]:
    """List what is beside the folder of the cases, where a path that leads upwards would end."""
    return {str(path) for folder in (place, place.parent / "outside") for path in folder.iterdir()}


def _limit_addresses() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _ADDRESSES, now + _ADDRESSES))


def _keep(keep: Path | None, targets: Sequence[Target], case: int, seed: int) -> str:
    if keep is None:
        return ""
    target, files = draw(targets, case, seed)
    place = keep / f"{target.name.replace(' ', '-')}-{case}"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_case(files, place)
    return str(place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer and print its table."""
    import torch

    from fuzz.targets import TARGETS

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="Load damaged files; see the head of this file.")
    parser.add_argument("--cases", type=int, default=100_000, help="how many files")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--case", type=int, help="load only this one, here, with its traceback")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="for failures")
    given = parser.parse_args(arguments)
    if given.case is not None:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            target, files = draw(TARGETS, given.case, given.seed)
            write_case(files, Path("case"))
            print(target.name, target.load(Path("case").resolve()))
        return 0
    begin = time.monotonic()
    cases = range(given.cases)
    report = fuzz(TARGETS, cases, seed=given.seed, jobs=given.jobs, keep=given.keep.resolve())
    print(report.table())
    print(f"\n{given.cases:,} files of seed {given.seed} in {time.monotonic() - begin:.0f} s")
    for failure in report.failures[:50]:
        print(f"FAILED case {failure.case} ({failure.kind}): {failure.what}; see {failure.kept}")
    if len(report.failures) > 50:
        print(f"and {len(report.failures) - 50} more")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
