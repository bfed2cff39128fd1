"""What a load may not do: an audit hook that stops it, and a measure of the memory that it took."""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of Python that have no place in the loading of a file, by the beginning of their name.
_FORBIDDEN = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn"),
    *("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.", "pickle.find_class"),
    *("os.kill", "os.putenv", "os.unsetenv", "os.chdir", "ctypes.dlopen", "code.__new__"),
)
# Those that change a file, with the places of the paths among their arguments.
_CHANGING = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "tempfile.mkstemp": (0,),
    "tempfile.mkdtemp": (0,),
}
_LIBRARIES = tuple(
    {
        os.path.realpath(place)
        for place in (
            *(sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"]),
            Path(__file__).parents[2] / "src",
        )
    }
)


class Violation(BaseException):
    """A load did what it may not do; no `except Exception` shall swallow it."""


class Watch:
    """Watches what happens while a file is loaded.

    Args:
        folder: The one place where files may be written.

    Attributes:
        seen: What was done that may not be done.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch while the block runs."""
        self.seen.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        reason = self._judge(event, arguments)
        if reason is not None:
            self.seen.append(reason)
            raise Violation(reason)

    def _judge(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return None
            if flags & _WRITING:
                return None if self._is_inside(path) else f"stray write to {path!r}"
            return None if self._may_read(path) else f"stray read of {path!r}"
        if event in _CHANGING:
            outside = [arguments[n] for n in _CHANGING[event] if not self._is_inside(arguments[n])]
            return f"stray {event} of {outside[0]!r}" if outside else None
        if event == "exec":
            file = getattr(arguments[0], "co_filename", "?")
            if not file.startswith(("<frozen", *_LIBRARIES)):
                return f"code executed from {file}"
        if event.startswith(_FORBIDDEN):
            return f"{event} {arguments!r:.200}"
        return None

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return True
        # the folder of the file, since what is replaced is a link and not what it points to
        parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
        whole = os.path.join(os.path.realpath(parent), name)  # noqa: PTH118
        return whole == self._folder or whole.startswith(self._folder + os.sep)

    def _may_read(self, path: Any) -> bool:
        # a link may be read through: many data sets are made of links
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        allowed = (self._folder, *_LIBRARIES, "/proc/", "/sys/", "/etc/mime.types", "/dev/null")
        return text.startswith(allowed)


def reset_peak() -> int:
    """Forget the largest memory so far; return what the process holds now, in bytes."""
    with contextlib.suppress(OSError):  # then the peak never falls, and less is noticed
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def read_peak() -> int:
    """Return the most memory that the process held since, in bytes."""
    return _status("VmHWM")


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - once a case
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
