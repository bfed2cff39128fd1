"""How far a long piece of work has come, with the time left, for whoever watches a terminal."""

import contextlib
import contextvars
import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

# A bar within a bar would write over it, so the inner one keeps quiet.
_inside = contextvars.ContextVar("aprune_progress_inside", default=False)

_PATIENCE = 1.0  # seconds: what ends sooner needs no bar


class Advance(Protocol):
    """What `bar` gives: call it when `n` more pieces are done, with a word on how it goes."""

    def __call__(self, n: int = 1, *, note: str | None = None) -> None:
        """Move the bar on by `n`, and put `note` beside it if there is one."""


@contextlib.contextmanager
def bar(title: str, total: int, *, show: bool | None = None) -> Iterator[Advance]:
    """Show a bar with the time left on stderr while the block runs.

    Nothing is ever printed when the bar is not shown, and the bar vanishes when the block ends.

    Args:
        title: What is being done.
        total: Number of pieces.
        show: `True` or `False` to decide; by default only on a terminal, only for work of more
            than a second, and not inside another bar.

    Yields:
        A function to call when pieces are done.

    Example:
        >>> with bar("counting", 3) as advance:
        ...     for number in range(3):
        ...         advance(1, note=f"now at {number}")
    """
    if show is None:
        show, patience = sys.stderr.isatty() and not _inside.get(), _PATIENCE
    else:
        patience = 0.0
    if not show:
        yield _ignore
        return
    token = _inside.set(True)
    drawn = _Drawn(title, total, patience)
    try:
        yield drawn
    finally:
        drawn.stop()
        _inside.reset(token)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Show no bar within the block, unless one is asked for.

    Example:
        >>> with silent(), bar("counting", 3) as advance:
        ...     advance(3)
    """
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class Clock:
    """Knows how long each kind of work lasts, and whether there is time for more of it.

    Args:
        limit: Seconds from now on; None means that there is no end.

    Example:
        >>> clock = Clock(limit=60)
        >>> with clock.timing("a nap"):
        ...     time.sleep(0.01)
        >>> clock.may_start("a nap"), Clock(limit=0).may_start("a nap")
        (True, False)
    """

    def __init__(self, limit: float | None = None) -> None:
        self._end = math.inf if limit is None else time.monotonic() + limit
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float | None:
        """Return the seconds left, or None if there is no end."""
        return None if self._end == math.inf else max(0.0, self._end - time.monotonic())

    def may_start(self, what: str) -> bool:
        """Tell whether work of that kind would probably be done in time."""
        return time.monotonic() + self._longest.get(what, 0.0) < self._end

    @contextlib.contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Remember how long the block lasts."""
        begin = time.monotonic()
        yield
        self.note(what, time.monotonic() - begin)

    def note(self, what: str, seconds: float) -> None:
        """Remember how long something has lasted."""
        self._longest[what] = max(self._longest.get(what, 0.0), seconds)


def _ignore(n: int = 1, *, note: str | None = None) -> None:
    del n, note


class _Drawn:
    """A bar that appears once the work has lasted `patience` seconds."""

    def __init__(self, title: str, total: int, patience: float) -> None:
        self._progress = _make_progress()
        self._task = self._progress.add_task(title, total=total, note="")
        self._due = time.monotonic() + patience
        self._started = False

    def __call__(self, n: int = 1, *, note: str | None = None) -> None:
        self._progress.advance(self._task, n)
        if note is not None:
            self._progress.update(self._task, note=note)
        if not self._started and time.monotonic() >= self._due:
            self._started = True
            self._progress.start()

    def stop(self) -> None:
        if self._started:
            self._progress.stop()


def _make_progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
