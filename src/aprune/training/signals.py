"""Ctrl-C and SIGTERM held back until a step is done."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from aprune.errors import ApruneError


class Signals:
    """Holds Ctrl-C and SIGTERM back while a step is done, so that its state can be written first.

    Whoever had asked for them gets them after all, by `deliver` or when the block ends. Who asks a
    second time is not kept waiting.

    Args:
        active: Whether to do that; otherwise signals come as they come.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._pending: int | None = None

    @property
    def pending(self) -> bool:
        """Return whether a signal has come."""
        return self._pending is not None

    def expect(self) -> None:
        """Act as if asked to end, since another process was."""
        if self._active and self._pending is None:
            self._pending = signal.SIGTERM

    def deliver(self) -> None:
        """Pass on a signal that has come."""
        if self._pending is None:
            return
        number, self._pending = self._pending, None
        self._restore()
        signal.raise_signal(number)
        self._install()  # whoever got it wants to go on

    def __enter__(self) -> Self:
        """Take the place of those who get signals."""
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give their place back, and what has come, unless there is something worse to tell."""
        self._restore()
        if self._pending is not None and not isinstance(error, ApruneError):
            signal.raise_signal(self._pending)

    def _install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM) if self._active else ():
            before = signal.getsignal(number)
            if before is not None and before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)

    def _restore(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._pending is None:
            self._pending = number
        else:
            self._restore()
            signal.raise_signal(number)
