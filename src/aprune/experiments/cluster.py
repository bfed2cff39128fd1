"""Runs of an experiment on a Ray cluster.

The address comes from `RAY_ADDRESS`; without one, Ray uses the cores and GPUs of this machine. Nodes
need aprune, and nothing else: tasks and architectures travel to them, and the files that a run leaves
behind travel back, into the one store. A node that dies costs its runs, which Ray does again elsewhere.
"""

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from aprune.errors import ApruneError, SettingError
from aprune.experiments.retrain import retrain_all
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.sharing import Claims, Result, share
from aprune.experiments.store import Store
from aprune.progress import Clock
from aprune.tasks import Task

_RETRIES = 3  # of a job whose node dies
_TOGETHER = 16  # retrainings at most that share a captured step
_PATIENCE = 10.0  # seconds for a cluster to answer
_LOOK_EVERY = 1.0  # seconds between two looks at how many nodes there are

R = TypeVar("R", SearchRun, TransferRun)


class Cluster:
    """Does runs on the nodes of a Ray cluster; use it as a context.

    Args:
        device: `auto` takes the GPUs of the cluster if it has any; `cpu` or `cuda`.

    Raises:
        SettingError: Ray is not installed, does not answer, or has no GPU if one is asked for.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = torch.device("cpu")  # of tasks before they travel
        self._ray = _import_ray()
        self._asked = device
        self._stack = contextlib.ExitStack()
        self._sent: dict[int, tuple[object, Any]] = {}

    def __enter__(self) -> "Cluster":
        """Connect."""
        ray = self._ray
        # what Ray tells of itself must not get between the results
        self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not ray.is_initialized():
            try:
                _knock(os.environ.get("RAY_ADDRESS", ""))
                ray.init(log_to_driver=False, logging_level="ERROR")
            except (OSError, RuntimeError, ValueError) as error:
                self._stack.close()
                reason = str(error).strip().partition("\n")[0]
                raise SettingError(
                    f"Ray cannot be reached: {reason}; is RAY_ADDRESS that of a running cluster?"
                ) from error
            self._stack.callback(ray.shutdown)
        self._gpu = self._asked != "cpu" and self._count("GPU") > 0
        if self._asked not in ("auto", "cpu") and not self._gpu:
            self._stack.close()
            raise SettingError(f"device {self._asked} was asked for, but the cluster has no GPU")
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._sent.clear()
        self._stack.close()

    def search_all(
        self, runs: Sequence[SearchRun], store: Store, clock: Clock
    ) -> Iterator[tuple[SearchRun, Result]]:
        """Do each search on a node of its own."""

        def do(todo: list[SearchRun], claims: Claims) -> Iterator[tuple[SearchRun, Result]]:
            jobs = (_Job([run], []) for run in todo if claims.take(run))
            yield from self._flow(jobs, store, clock, "search")

        return share(runs, store, do)

    def retrain_all(
        self, runs: Sequence[TransferRun], store: Store, clock: Clock
    ) -> Iterator[tuple[TransferRun, Result]]:
        """Do some retrainings at a time on each node, with the architectures that they need."""

        def do(todo: list[TransferRun], claims: Claims) -> Iterator[tuple[TransferRun, Result]]:
            jobs = self._jobs(todo, claims, store, len(runs))
            yield from self._flow(jobs, store, clock, "retraining")

        return share(runs, store, do)

    def _jobs(
        self, todo: list[TransferRun], claims: Claims, store: Store, total: int
    ) -> "Iterator[_Job[TransferRun]]":
        """Put together what a node does at a time: on a GPU several, and always of one start."""
        groups: dict[Any, list[TransferRun]] = {}
        for run in todo:
            groups.setdefault(run.before, []).append(run)
        for group in groups.values():
            number = 1 if not self._gpu else -(-len(group) // (2 * self._slots()))
            number = len(group) if group[0].before is not None else min(number, _TOGETHER)
            for first in range(0, len(group), number):
                mine = [run for run in group[first : first + number] if claims.take(run)]
                if mine:
                    yield _Job(mine, [path for run in mine for path in run.needs(store)], total)

    def _flow(
        self, jobs: "Iterator[_Job[R]]", store: Store, clock: Clock, kind: str
    ) -> Iterator[tuple[R, Result]]:
        """Keep the cluster busy, and give the results of jobs as they come."""
        flying: dict[Any, tuple[_Job[R], float]] = {}
        try:
            while True:
                while len(flying) < self._slots() and clock.may_start(kind):
                    job = next(jobs, None)
                    if job is None:
                        break
                    flying[self._send(job, store)] = (job, time.monotonic())
                if not flying:
                    return
                ready, _ = self._ray.wait(list(flying), timeout=_LOOK_EVERY)
                for reference in ready:
                    job, begin = flying.pop(reference)
                    store.adopt(self._receive(reference))
                    clock.note(kind, time.monotonic() - begin)
                    for run in job.runs:
                        result = run.look(store)
                        assert result is not None
                        yield run, result
        finally:
            for reference in flying:
                self._ray.cancel(reference, force=True)

    def _send(self, job: "_Job[R]", store: Store) -> Any:
        tasks: list[Task] = []
        bare = [_without_tasks(run, tasks) for run in job.runs]
        names = [path.relative_to(store.folder).as_posix() for path in dict.fromkeys(job.needs)]
        remote = self._ray.remote(_work).options(
            num_cpus=1, num_gpus=int(self._gpu), max_retries=_RETRIES, name=type(bare[0]).__name__
        )
        return remote.remote(
            bare,
            names,
            self._gpu,
            job.total,
            *(self._put(task, task) for task in tasks),
            *(self._put(name, (store.folder / name).read_bytes()) for name in names),
        )

    def _put(self, key: object, value: object) -> Any:
        """Give an object to the cluster, once."""
        which = hash(key) if isinstance(key, str) else id(key)
        if which not in self._sent:
            self._sent[which] = (key, self._ray.put(value))  # the key lives on, and with it its id
        return self._sent[which][1]

    def _receive(self, reference: Any) -> dict[str, bytes]:
        errors = self._ray.exceptions
        try:
            files: dict[str, bytes] = self._ray.get(reference)
            return files
        except errors.RayTaskError as error:
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, ApruneError) else error from None
        except errors.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ApruneError(
                f"a run was given up after {_RETRIES + 1} tries: {reason}; the same command does"
                " the rest"
            ) from error

    def _slots(self) -> int:
        return max(1, int(self._count("GPU" if self._gpu else "CPU")))

    def _count(self, resource: str) -> float:
        return float(self._ray.cluster_resources().get(resource, 0))


@dataclass(frozen=True)
class _Job(Generic[R]):
    """Some runs, the files of the store that they need, and how many runs there are in all."""

    runs: list[R]
    needs: list[Path]
    total: int = 1


def _work(
    runs: list[SearchRun] | list[TransferRun], names: list[str], gpu: bool, total: int, *more: Any
) -> dict[str, bytes]:
    """Do runs on a node, in a store of its own; return the files that came to be."""
    tasks, contents = more[: len(more) - len(names)], more[len(more) - len(names) :]
    device = torch.device("cuda" if gpu else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.adopt(dict(zip(names, contents, strict=True)))
        whole = [_with_tasks(run, tasks) for run in runs]
        for run in whole:
            if isinstance(run, SearchRun):
                run.do(store, device)
        retrainings = [run for run in whole if isinstance(run, TransferRun)]
        for _ in retrain_all(retrainings, store, device, total=total):
            pass
        return {name: store.folder.joinpath(name).read_bytes() for name in store.names() - {*names}}


def _without_tasks(run: Any, tasks: list[Task]) -> Any:
    """Return a run with numbers in the place of its tasks, which come into the list."""
    if run is None:
        return None
    if not any(run.task is task for task in tasks):
        tasks.append(run.task)
    number = next(number for number, task in enumerate(tasks) if task is run.task)
    changes: dict[str, Any] = {"task": number}
    if isinstance(run, TransferRun):
        changes["search"] = _without_tasks(run.search, tasks)
        changes["before"] = _without_tasks(run.before, tasks)
    return replace(run, **changes)


def _with_tasks(run: Any, tasks: Sequence[Task]) -> Any:
    """Undo `_without_tasks`."""
    if run is None:
        return None
    changes: dict[str, Any] = {"task": tasks[run.task]}
    if isinstance(run, TransferRun):
        changes["search"] = _with_tasks(run.search, tasks)
        changes["before"] = _with_tasks(run.before, tasks)
    return replace(run, **changes)


def _knock(address: str) -> None:
    """Raise an `OSError` unless somebody listens there: Ray itself would go on trying for long."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host, int(port)), timeout=_PATIENCE):
            pass


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            "Ray is not installed: pip install 'aprune[ray]', or do without --on ray"
        ) from error
    return ray
