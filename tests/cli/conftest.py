"""The command line called as a function, without data, network or a cache of anybody's."""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aprune.cli import main
from aprune.training.update import PlainUpdate


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    def assert_refused(self, *words: str) -> None:
        """One line on stderr with these words in it, status 2, and nothing on stdout."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("aprune: "), self.err
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err, self.err


@pytest.fixture(scope="session", autouse=True)
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConnectionError("no network in tests\nand a second line")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.snapshot_download", refuse)
        patch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
        patch.setenv("APRUNE_DATA", str(tmp_path_factory.mktemp("no-data")))
        patch.setenv("APRUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("APRUNE_DEBUG", raising=False)
        yield


@pytest.fixture(scope="session")
def aprune() -> Callable[..., Ended]:
    def call(*arguments: object) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([str(argument) for argument in arguments])
        return Ended(status, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="session")
def archs(aprune: Callable[..., Ended], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two architectures found in the mlp on digits 0 to 4, with their weights."""
    folder = tmp_path_factory.mktemp("found") / "archs"
    classes = ("--classes", "0,1,2,3,4")
    sizes = ("--sparsity", "0.5,0.9", "--steps", 60, "--batch", 32)
    ended = aprune(
        "find",
        "--parent",
        "mlp",
        "--task",
        "digits",
        *classes,
        *sizes,
        "--out",
        folder,
        "--weights",
    )
    assert ended.status == 0, ended.err
    return folder


@pytest.fixture(scope="session")
def arch(archs: Path) -> Path:
    return archs / "mlp-digits-ap-0.9-seed0.arch.safetensors"


@pytest.fixture
def list_tree(tmp_path: Path) -> Callable[[], dict[Path, bytes | None]]:
    """What is below the test's folder, to see that nothing was left behind."""

    def look() -> dict[Path, bytes | None]:
        return {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}

    return look


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each step that is done in this process."""
    done: list[int] = []
    move = PlainUpdate.move

    def moving(self: PlainUpdate) -> None:
        done.append(1)
        move(self)

    monkeypatch.setattr(PlainUpdate, "move", moving)
    return done


class Stop(BaseException):
    """The end of a process, as far as its files can tell."""


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a command with a state after every step, and stop it in a certain one."""

    def run(step: int, *arguments: object) -> None:
        left = [step]
        move = PlainUpdate.move

        def moving(self: PlainUpdate) -> None:
            move(self)
            left[0] -= 1
            if left[0] == 0:
                raise Stop

        with monkeypatch.context() as patch:
            patch.setattr("aprune.training.checkpoint.INTERVAL", 0.0)
            patch.setattr("aprune.training.checkpoint.SHARE", float("inf"))
            patch.setattr(PlainUpdate, "move", moving)
            with pytest.raises(Stop):
                main([str(argument) for argument in arguments])

    return run
