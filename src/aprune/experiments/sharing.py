"""Runs that several processes want: each is done by one of them, and looked up by the others."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from aprune.experiments.store import PATIENCE, Store

Result = dict[str, Any]


class Run(Protocol):
    """A search or a retraining."""

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the result."""
        ...

    def look(self, store: Store) -> Result | None:
        """Return the result if it was done."""
        ...


R = TypeVar("R", bound=Run)


class Claims:
    """Which runs this process is at, and which others are.

    Attributes:
        refused: Those that another process is at, or has just done.
    """

    def __init__(self, store: Store) -> None:
        self.refused: list[Any] = []
        self._store = store
        self._held: dict[Run, contextlib.ExitStack] = {}

    def take(self, run: Run) -> bool:
        """Claim a run, unless it is another's by now."""
        held = contextlib.ExitStack()
        if held.enter_context(self._store.claim(run.describe())) and run.look(self._store) is None:
            self._held[run] = held
            return True
        held.close()
        self.refused.append(run)
        return False

    def give_back(self, run: Run) -> None:
        """Let go of a run that is done, if it was claimed."""
        if run in self._held:
            self._held.pop(run).close()

    def close(self) -> None:
        """Let go of all."""
        for run in list(self._held):
            self.give_back(run)


def share(
    runs: Iterable[R],
    store: Store,
    do: Callable[[list[R], Claims], Iterator[tuple[R, Result]]],
) -> Iterator[tuple[R, Result]]:
    """Give each run with its result: looked up, or done, or waited for where another is at it.

    Args:
        runs: What is wanted.
        store: Where results are kept.
        do: Does those of some runs that it can claim, keeps them, and gives their results. Those that it
            leaves out, because there is no time, are missing.
    """
    left = list(dict.fromkeys(runs))
    while left:
        todo = []
        for run in left:
            if (known := run.look(store)) is not None:
                yield run, known
            else:
                todo.append(run)
        with contextlib.closing(Claims(store)) as claims:
            for run, result in do(todo, claims):
                claims.give_back(run)
                yield run, result
        left = claims.refused
        if left:
            time.sleep(PATIENCE)
