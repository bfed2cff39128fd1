"""Where the runs of an experiment are done: in this process, or elsewhere."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from aprune.experiments.retrain import retrain_all
from aprune.experiments.run import SearchRun, TransferRun
from aprune.experiments.sharing import Claims, Result, share
from aprune.experiments.store import Store
from aprune.progress import Clock


class Launcher(Protocol):
    """Does runs that are not in the store yet, and keeps them there.

    Attributes:
        device: Where the tensors of tasks are to be.
    """

    device: torch.device

    def search_all(
        self, runs: Sequence[SearchRun], store: Store, clock: Clock
    ) -> Iterator[tuple[SearchRun, Result]]:
        """Give each search with its result; what the time does not suffice for is missing."""
        ...

    def retrain_all(
        self, runs: Sequence[TransferRun], store: Store, clock: Clock
    ) -> Iterator[tuple[TransferRun, Result]]:
        """Give each retraining with its result; the searches they need were done before."""
        ...


class Here:
    """Does them in this process. Others may work on the same store: they share the runs.

    Args:
        device: Where to train.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def search_all(
        self, runs: Sequence[SearchRun], store: Store, clock: Clock
    ) -> Iterator[tuple[SearchRun, Result]]:
        """Search one after another; what another process is at is waited for at the end."""

        def do(todo: list[SearchRun], claims: Claims) -> Iterator[tuple[SearchRun, Result]]:
            for run in todo:
                if clock.may_start("search") and claims.take(run):
                    with clock.timing("search"):
                        result = run.do(store, self.device)
                    yield run, result

        return share(runs, store, do)

    def retrain_all(
        self, runs: Sequence[TransferRun], store: Store, clock: Clock
    ) -> Iterator[tuple[TransferRun, Result]]:
        """Retrain together."""
        left = clock.left if clock.may_start("retraining") else 0.0
        done = retrain_all(runs, store, self.device, left)
        while True:
            with clock.timing("retraining"):  # the final ones last as long as those for tuning
                pair = next(done, None)
            if pair is None:
                return
            yield pair
