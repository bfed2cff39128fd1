"""What is printed: results on stdout, all else on stderr, and no foreign text as it comes."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aprune.errors import FileError
from aprune.files import printable

if TYPE_CHECKING:
    from rich.console import Console

_EIGHTHS = " ▏▎▍▌▋▊▉"


def complain(text: str) -> None:
    """Print one line about what went wrong, on stderr."""
    print(f"aprune: {text}", file=sys.stderr)


def complain_of(attrs: Mapping[Any, Any]) -> None:
    """Say what `attrs` of a comparison tell: damaged files, dead networks, and what is missing."""
    for path in attrs.get("damaged", ()):
        complain(f"{printable(path)} was damaged: its run was done again")
    if shared := attrs.get("shared", 0):
        complain(
            f"the new task has {shared} of the classes that were searched on, so it is no new one: give"
            " others with --classes, or with --from-classes"
        )
    if dead := attrs.get("dead", 0):
        complain(
            f"dead networks, with one and the same output for all images: {dead} of those retrained; a"
            " lower sparsity or a smaller learning rate may help"
        )
    if not attrs.get("complete", True):
        complain("the time was up before all was done; run the same command again for the rest")


def say(text: str) -> None:
    """Print a result that is one line of text."""
    print(printable(text))


def print_json(document: Any) -> None:
    """Print the one JSON document that `--json` promises."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()
) -> None:
    """Print a table; columns are flush right but for those named in `left`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in columns:
        side = "left" if title in left else "right"
        table.add_column(Text(title), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        # As Text, since markup in a name of the user's is not for us to interpret.
        table.add_row(*(Text(printable(cell)) for cell in row))
    _console().print(table)


def count(number: int, one: str, several: str = "") -> str:
    """Write a number of things.

    Example:
        >>> count(1, "step"), count(1_000, "step"), count(0, "pass", "passes")
        ('1 step', '1,000 steps', '0 passes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def draw_bar(fraction: float, width: int = 12) -> str:
    """Draw a fraction as a bar; anything above nothing shows.

    Example:
        >>> draw_bar(0.5, 4), draw_bar(0.0001, 4), draw_bar(0.0, 4)
        ('██', '▏', '')
    """
    eighths = round(fraction * width * 8)
    if fraction > 0:
        eighths = max(1, eighths)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def one_line(text: object) -> str:
    r"""Bring a message into one line.

    Example:
        >>> one_line("two\n  lines")
        'two lines'
    """
    return printable(" ".join(str(text).split()))


def path_safe(text: str) -> str:
    """Make part of a file's name of any text.

    Example:
        >>> path_safe("folder:/my pictures")
        'folder_my_pictures'
    """
    kept = "".join(c if c.isalnum() or c in "._-" else " " for c in text)
    return "_".join(kept.split()).lstrip(".") or "_"


@contextlib.contextmanager
def output_folder(folder: Path, *, mine: bool = True) -> Iterator[Path]:
    """Make sure that files can be written in `folder` before the work begins.

    If the work then fails, folders that were made for it and are empty go away again. Nothing is done
    if it is not `mine`, but another process's.
    """
    from aprune.files import check_writable

    if not mine:
        yield folder
        return

    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        check_writable(folder)
        yield folder
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


def checkpoint_folder(folder: Path, name: str) -> Path:
    """Return the place for the state of one run whose files go to `folder`."""
    from aprune.files import check_no_link

    place = folder / "checkpoints" / name
    check_no_link(place.parent)
    check_no_link(place)
    return place


@contextlib.contextmanager
def alone_at(checkpoint: Path | None, *, fresh: bool) -> Iterator[set[str]]:
    """Raise a `FileError` if another process is at the work whose state goes to that folder.

    Args:
        checkpoint: The folder; None does nothing.
        fresh: Whether to forget the state.

    Yields:
        The keys of the runs that are done within the block, to remove no other states than theirs.
    """
    if checkpoint is None:
        yield set()
        return
    from aprune.files import claimed
    from aprune.training.checkpoint import CLAIM, noting_keys, remove_checkpoint

    with claimed(checkpoint / CLAIM) as mine, noting_keys() as keys:
        if not mine:
            raise FileError(
                f"another process is at the same work (its state is in {checkpoint}): wait for it, or"
                " choose another place with --out"
            )
        if fresh:
            remove_checkpoint(checkpoint)
        yield keys


def check_replaceable(*paths: Path) -> None:
    """Raise a `FileError` if one of the files to come is a folder today."""
    for path in paths:
        if path.is_dir():
            raise FileError(f"cannot write {path}: it is a folder; choose another name with --out")


def _console() -> "Console":
    from rich.console import Console

    # In a pipe nothing is as wide as a screen, and a broken path is of no use to a program.
    width = None if sys.stdout.isatty() else 1_000
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)
