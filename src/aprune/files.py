"""Where files go, and writing them so that nothing is ever half there."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aprune.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside `path` that becomes `path` when the block ends well.

    The folder is made if need be. If the block raises, `path` is as it was before.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with writing(folder / "note.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> (folder / "note.txt").read_text()
        'whole'
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise FileError(_reason(path, error)) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise FileError(_reason(path, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Let only one process at a time do what `path` stands for.

    The system itself knows who holds a claim, and that a process that has ended holds none: what a
    killed one leaves behind is a file that is free to be claimed. Where files cannot be locked, all may
    go on.

    Args:
        path: A file that stands for the work. It is made, and is gone when the block ends, and so are
            the two folders above it if nothing else is in them.

    Yields:
        Whether this process has the claim; if not, another one has it now.

    Example:
        >>> place = Path(tempfile.mkdtemp()) / "work" / "claim"
        >>> with claimed(place) as mine, claimed(place) as again:
        ...     mine, again
        (True, False)
        >>> place.parent.exists()
        False
    """
    handle = _try_to_lock(path)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        if handle >= 0:
            _forget(path)
            os.close(handle)


def cache_folder() -> Path | None:
    """Return the folder for what can be made again: `$APRUNE_CACHE`, or `~/.cache/aprune`.

    Returns:
        The folder, which need not exist yet, or `None` where the user has no home.

    Example:
        >>> cache_folder() is None or isinstance(cache_folder(), Path)
        True
    """
    with contextlib.suppress(RuntimeError):
        return Path(os.environ.get("APRUNE_CACHE") or "~/.cache/aprune").expanduser()
    return None


def check_writable(folder: Path | str) -> Path:
    """Make `folder` and raise a `FileError` at once if nothing can be written there.

    Long work calls this first, so that an hour of search does not end in "permission denied".
    """
    folder = Path(folder)
    try:
        with writing(folder / ".aprune-probe"):
            pass
    except FileError as error:
        raise FileError(str(error).replace("/.aprune-probe", "")) from error
    # another process may have looked at the same time
    (folder / ".aprune-probe").unlink(missing_ok=True)
    return folder


def check_ordinary(path: Path | str) -> None:
    """Raise an `OSError` unless `path` is a file with an end: no folder, no pipe, no device.

    A folder of somebody else's may hold a pipe under any name, and whoever opens it waits for ever.

    Example:
        >>> check_ordinary(os.devnull)
        Traceback (most recent call last):
        OSError: it is no ordinary file
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a name with a zero in it is a ValueError
        raise OSError("it is no ordinary file")


def printable(text: object) -> str:
    r"""Escape what would move the cursor or end the line: a file may say anything of itself.

    Example:
        >>> printable("a\x1b[2J")
        'a\\x1b[2J'
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in str(text)
    )


def _try_to_lock(path: Path) -> int | None:
    """Return a handle that holds the lock, -1 where there are no locks, or None if somebody has it."""
    if fcntl is None:
        return -1
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # the folder has just gone: once more
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                if _lock(path, handle):
                    return handle
    except BlockingIOError:
        return None
    except OSError:
        return -1


def _lock(path: Path, handle: int) -> bool:
    """Lock an open file; False if another one has come to be at `path` meanwhile."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return True
    except FileNotFoundError:
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return False


def _forget(path: Path) -> None:
    """Remove a file, and its folder and the one above if they are empty."""
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _reason(path: Path, error: OSError) -> str:
    advice = "choose another place with --out"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "make room and run the same again: it goes on from what was written"
    return f"cannot write {path}: {error.strerror or error}; {advice}"


def _sync_folder(folder: Path) -> None:
    """Let a new name outlast a loss of power too; a file system that cannot do that is left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
