"""Where files go, and writing them so that nothing is ever half there."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aprune.errors import FileError


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
    except OSError as error:
        raise FileError(_reason(path, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


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


def _reason(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}; choose another place with --out"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
