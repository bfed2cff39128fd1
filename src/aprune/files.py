"""Where files go, and writing them so that nothing is ever half there."""

import contextlib
import errno
import glob
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

_PART = ".part-"  # in the names of files that are not whole yet


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside `path` that becomes `path` when the block ends well.

    The folder is made if need be. If the block raises, `path` is as it was before. What processes that
    were killed have left of the same `path` is removed.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with writing(folder / "note.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> (folder / "note.txt").read_text()
        'whole'
    """
    path = Path(path)
    try:
        _make_folder(path.parent)
        _remove_leftovers(path)
        temporary, handle = _make_temporary(path)
    except OSError as error:
        raise FileError(_reason(path, error)) from error
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
        with contextlib.suppress(OSError):  # the folder may be anything by now
            temporary.unlink()
        if handle is not None:
            os.close(handle)


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
            _forget(path, handle)
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


def check_no_link(place: Path) -> None:
    """Raise a `FileError` if `place` is a link: in a folder of somebody else's it may lead anywhere.

    Example:
        >>> check_no_link(Path(tempfile.mkdtemp()))
    """
    if place.is_symlink():
        raise FileError(
            f"{place} is a link, expected a folder: remove it, or make the whole of {place.parent} a"
            " link"
        )


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


def _forget(path: Path, handle: int) -> None:
    """Remove a claim that is still this one, and its folder and the one above if they are empty."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(handle), path.stat()):
            path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _make_folder(folder: Path) -> None:
    """Make a folder that outlasts a loss of power, with those above it."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in new:
        _sync_folder(place.parent)


def _make_temporary(path: Path) -> tuple[Path, int | None]:
    """Make a file beside `path`; the lock on its handle says that somebody is at it."""
    while True:
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}{_PART}", suffix=path.suffix, dir=path.parent
        )
        if fcntl is None:
            os.close(handle)
            return Path(name), None
        try:
            if _lock(Path(name), handle):
                return Path(name), handle
        except BlockingIOError:  # taken for a leftover in this very moment: once more
            continue
        except OSError:  # no locks here
            return Path(name), None


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of `path` whose process is no more."""
    pattern = f".{glob.escape(path.name)}{_PART}????????{glob.escape(path.suffix)}"
    for left in path.parent.glob(pattern) if fcntl is not None else ():
        with contextlib.suppress(OSError):  # in use, gone, or no file
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if _lock(left, handle):
                try:
                    left.unlink()
                finally:
                    os.close(handle)


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
