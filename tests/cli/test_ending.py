"""How the command ends: errors, interrupts, readers that go away; and that help is quick."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aprune.cli import main

VERBS = (
    (),
    ("demo",),
    ("find",),
    ("transfer",),
    ("compare",),
    ("show",),
    ("reproduce",),
    ("reproduce", "figure1"),
    ("data",),
    ("data", "list"),
    ("data", "fetch"),
    ("data", "check"),
)
FIND = ("find", "--parent", "mlp", "--task", "digits", "--sparsity", "0.5", "--steps", "10")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from aprune.cli import main\n"
        f"for verb in {VERBS!r}:\n"
        "    assert main([*verb, '--help']) == 0\n"
        "assert main(['--version']) == 0\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(' '.join(sorted(heavy)) or 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_shows_an_example(aprune: Callable[..., Any], verb: tuple[str, ...]) -> None:
    ended = aprune(*verb, "--help")
    assert (ended.status, ended.err) == (0, "")
    example = f"Example: aprune {' '.join(verb)}" if verb else "aprune demo"
    assert example in ended.out
    assert aprune(*verb, "-h").out == ended.out


def test_version_and_nothing_at_all(aprune: Callable[..., Any]) -> None:
    import aprune as package

    assert aprune("--version").out == f"aprune {package.__version__}\n"
    assert aprune().out == aprune("--help").out


def test_module_is_the_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "aprune", "show", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1


def _break(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the search fail; where the command line looks it up."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    import aprune.finding  # noqa: F401

    monkeypatch.setattr(sys.modules["aprune.finding"], "search", fail)


def test_unexpected_error(
    aprune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, list_tree: Any
) -> None:
    _break(monkeypatch, ZeroDivisionError("by\nzero"))
    find = (*FIND, "--out", tmp_path / "out")
    ended = aprune(*find)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert "ZeroDivisionError: by zero" in ended.err
    assert "--debug" in ended.err
    for debugging in ((*find, "--debug"), ("--debug", *find)):
        with pytest.raises(ZeroDivisionError):
            main([str(word) for word in debugging])
    monkeypatch.setenv("APRUNE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main([str(word) for word in find])
    assert list_tree() == {}


def test_debug_shows_where_a_refusal_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    from aprune.errors import ApruneError

    with pytest.raises(ApruneError):
        main(["show", "nowhere", "--debug"])


def test_usage_stays_one_line_with_debug(aprune: Callable[..., Any]) -> None:
    aprune("show", "--debug").assert_refused("FILE", "; see aprune show --help")
    aprune("fin").assert_refused("Did you mean 'find'? See aprune --help\n")


def test_interrupt(
    aprune: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, list_tree: Any
) -> None:
    _break(monkeypatch, KeyboardInterrupt())
    ended = aprune(*FIND, "--out", tmp_path / "a" / "b")
    assert (ended.status, ended.out) == (130, "")
    assert ended.err == "aprune: interrupted; nothing was half-written\n"
    assert list_tree() == {}


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_end_while_a_library_is_loading(name: str, status: int, tmp_path: Path) -> None:
    # what some extensions do with whatever is raised while they are being imported
    (tmp_path / "halfway.py").write_text(
        "import os, signal\n"
        "try:\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "except BaseException:\n"
        "    raise ImportError('initialization failed') from None\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "aprune", *FIND, "--parent", "halfway:build"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    what = "interrupted" if name == "SIGINT" else "terminated"
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr == f"aprune: {what}; nothing was half-written\n"


def test_interrupt_of_a_real_search(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "aprune", *FIND[:-1], "1000000", "--out", str(out)]
    # a shell lets what it starts in the background ignore the interrupt, and so would the search
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not out.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    try:
        printed, complaint = process.communicate(timeout=60)
    finally:
        process.kill()  # nothing happens to a process that has ended
    assert (process.returncode, printed) == (130, "")
    assert complaint == "aprune: interrupted; nothing was half-written\n"
    # at most its state: it may have been on its way already
    assert {path.name for path in tmp_path.glob("out/*")} <= {"checkpoints"}


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_reader_that_goes_away(arch: Path, how: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "aprune", "show", str(arch), *how]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert ended.stderr == ""
    assert ended.returncode == 128 + signal.SIGPIPE  # as of a tool that it has killed


def test_terminal_without_unicode(arch: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "aprune", "show", str(arch)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "fc1.weight" in ended.stdout


def test_data(aprune: Callable[..., Any]) -> None:
    listed = aprune("data")
    assert listed.out == aprune("data", "list").out
    assert "digits" in listed.out
    assert "not here" in listed.out
    known = json.loads(aprune("data", "list", "--json").out)
    assert [entry["name"] for entry in known] == ["digits", "mnist", "cifar10", "cifar100"]
    assert aprune("data", "fetch", "digits").out == "digits is here: embedded\n"
    checked = json.loads(aprune("data", "check", "digits", "--json").out)
    assert sum(checked["train"].values()) == 1198
    assert len(checked["checksum"]) == 64
    assert checked["checksum"] in aprune("data", "check", "digits").out


def test_figure1(aprune: Callable[..., Any], tmp_path: Path) -> None:
    small = ("reproduce", "figure1", "--seeds", 2, "--iterations", 20, "--out", tmp_path)
    ended = aprune(*small)
    assert (ended.status, ended.err) == (0, "")
    assert "On digits" in ended.out
    for kind in ("png", "pdf", "parquet"):
        assert (tmp_path / f"figure1-digits.{kind}").stat().st_size > 0
        assert str(tmp_path / f"figure1-digits.{kind}") in ended.out
    document = json.loads(aprune(*small, "--json").out)
    assert document["verdict"] in ended.out


def test_a_launcher_that_asks_twice_gets_one_last_word() -> None:
    """The second time comes while the first is being answered."""
    code = """
import os, signal
from aprune.cli import app

def end(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)

def say_slowly(text, say=app.complain):
    end()
    say(text)

class Command:
    main = end

app.complain, app.typer.main.get_command = say_slowly, lambda _: Command()
raise SystemExit(app.main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = "aprune: terminated; nothing was half-written\n"
    assert (ended.returncode, ended.stderr) == (143, said)
