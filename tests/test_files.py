"""Files are whole, as they were, or not there at all; and what one process is at, no other does."""

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aprune.errors import FileError
from aprune.files import _remove_leftovers, check_writable, claimed, writing

HOLD = """
import sys, time
from pathlib import Path
from aprune.files import claimed
with claimed(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


@contextmanager
def held_by_another(path: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_claim_is_one_processs(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "run" / "claim"
    with held_by_another(path):
        with claimed(path) as mine:
            assert not mine
        assert path.exists()  # it is still the other's


def test_a_claim_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "run" / "claim"
    with held_by_another(path) as process:
        process.kill()
        process.wait()
    assert path.exists()  # a stale one
    with claimed(path) as mine:
        assert mine
    assert list(tmp_path.iterdir()) == []


def test_what_was_claimed_anew_is_not_taken_for_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, the one before gives back, and another one claims."""
    path, lock = tmp_path / "claim", fcntl.flock
    path.touch()
    with contextlib.ExitStack() as other:

        def slow(handle: int, how: int) -> None:
            monkeypatch.setattr(fcntl, "flock", lock)
            path.unlink()
            assert other.enter_context(claimed(path))
            lock(handle, how)

        monkeypatch.setattr(fcntl, "flock", slow)
        with claimed(path) as mine:
            assert not mine


def test_where_there_are_no_locks_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claimed(tmp_path / "claim") as mine, claimed(tmp_path / "claim") as again:
        assert mine
        assert again
    monkeypatch.undo()
    (tmp_path / "folder" / "claim").mkdir(parents=True)
    with claimed(tmp_path / "folder" / "claim") as mine:
        assert mine


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "note.txt"
    with writing(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
        assert temporary.suffix == ".txt"
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """But not what a process that lives is at, or what only looks like it."""
    target = tmp_path / "note.txt"
    code = "import os, sys; from aprune.files import writing\n"
    code += "with writing(sys.argv[1]) as part: part.write_text('ha'); os.kill(os.getpid(), 9)"
    for name in (target, tmp_path / "other.txt"):
        subprocess.run([sys.executable, "-c", code, str(name)])
    (part, other) = sorted(tmp_path.iterdir())
    assert part.read_text() == "ha"
    mine = tmp_path / ".note.txt.backup.txt"
    mine.write_text("")
    with writing(target) as one, writing(target) as two:
        one.write_text("one")
        two.write_text("two")
        assert sorted(tmp_path.iterdir()) == sorted([mine, other, one, two])
    assert target.read_text() == "one"
    assert sorted(tmp_path.iterdir()) == sorted([mine, other, target])


def test_a_part_that_is_taken_for_a_leftover_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking it, another process comes along."""
    lock = fcntl.flock
    target = tmp_path / "note.txt"

    def slow(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        _remove_leftovers(target)
        assert list(tmp_path.iterdir()) == []
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with writing(target) as part:
        part.write_text("whole")
    assert target.read_text() == "whole"


def test_parts_are_written_without_locks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with writing(tmp_path / "a") as one, writing(tmp_path / "a"):
        one.write_text("one")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_power_may_fail_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is on the disk before the name is, and so is every new folder on the way."""
    happened: list[str] = []
    sync, replace = os.fsync, os.replace

    def syncing(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        happened.append("content" if path.is_file() else path.name)
        sync(handle)

    def replacing(old: Path, new: Path) -> None:
        happened.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    with writing(tmp_path / "a" / "b" / "note.txt") as temporary:
        temporary.write_text("whole")
    assert sorted(happened[:2]) == sorted(["a", tmp_path.name])
    assert happened[2:] == ["content", "name", "b"]


def test_a_claim_that_is_anothers_by_now_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with contextlib.ExitStack() as other:
        with claimed(path) as mine:
            path.unlink()  # somebody has emptied the folder
            assert mine
            assert other.enter_context(claimed(path))
        with claimed(path) as third:
            assert not third


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with writing(tmp_path / "note.txt") as temporary:
            temporary.write_text("")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note.txt").stat().st_mode) == 0o640


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_changes_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")

    def half() -> None:
        with writing(target) as temporary:
            temporary.write_text("ha")
            raise stop

    with pytest.raises(stop):
        half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file" / "note.txt", tmp_path / "folder", tmp_path / ("x" * 300)):
        expected = pytest.raises(FileError, match=r"^cannot write .*choose another place")
        with expected as caught, writing(target) as temporary:
            temporary.write_text("new")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_error_of_the_disk_is_one_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No space left"), writing(tmp_path / "note.txt"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_probing_a_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "out") == tmp_path / "out"
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        check_writable(tmp_path / "file")
