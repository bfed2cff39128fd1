"""What the documents show is true: their Python runs, their commands parse, their tables fit the code.

Nothing is passed over in silence. A fenced block must say what it is:

    python              is run, all blocks of a file one after another in one namespace and one folder
    python no-run       is compiled only, because it needs data or a GPU that a test has not
    python file=NAME    is written to NAME in that folder, for later blocks to import
    bash, console       every command must be known here; `aprune` and `make` are looked up
    json, math, text    nothing to check

A table under `<!-- settings: NAME -->` must list every setting of `aprune.NAME` with its default.
"""

import dataclasses
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import aprune
from aprune.cli.app import make_app
from aprune.cli.option import check_parent
from aprune.methods import METHODS
from aprune.tasks import task_names

ROOT = Path(__file__).parent.parent
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SHELL = ("bash", "console")
NOT_CODE = ("json", "math", "text")
# Commands of others that the documents show; anything else is a typing error until it is added here.
FOREIGN = {"cd", "export", "git", "pip", "pytest", "python", "python3"}
OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    path: Path
    line: int  # of the first line inside
    kind: str
    detail: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    blocks: list[Block] = []
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = re.match(r" {0,3}```(.*)$", line)
        if opened is None and fence:
            opened, lines = (number + 1, fence[1].strip()), []
        elif opened is not None and fence and not fence[1].strip():
            kind, _, detail = opened[1].partition(" ")
            blocks.append(Block(path, opened[0], kind, detail, "\n".join(lines) + "\n"))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{path.name}:{opened}: the block is never closed"
    return blocks


BLOCKS = [block for path in FILES for block in read_blocks(path)]
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def read_commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Give each command of a shell block, split into words; in a console the prompt marks them."""
    prompts = any(line.startswith("$ ") for line in block.text.splitlines())
    whole = ""
    for number, line in enumerate(block.text.splitlines()):
        if not whole and prompts and not line.startswith("$ "):
            continue  # what the command prints
        whole += line.removeprefix("$ ") if not whole else line
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        words: list[str] = []
        for word in [*_split(whole), ";"]:
            if word not in OPERATORS:
                words.append(word)
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)  # a variable for this command alone
            if words:
                yield f"{block.path.relative_to(ROOT)}:{block.line + number}", words
            words = []
        whole = ""
    assert not whole, f"{block.where}: the last line goes on into nowhere"


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


COMMANDS = [command for block in BLOCKS if block.kind in SHELL for command in read_commands(block)]


def test_every_document_is_there() -> None:
    names = {str(path.relative_to(ROOT)) for path in FILES}
    assert names >= {
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        *(f"docs/{name}.md" for name in ("develop", "files", "guide", "method", "results")),
    }
    assert {str(block.path.relative_to(ROOT)) for block in PYTHON} >= {
        "README.md",
        "docs/develop.md",
        "docs/files.md",
        "docs/guide.md",
    }
    assert {words[0] for _, words in COMMANDS} >= {"aprune", "make"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_markdown_leaves_formulas_as_they_are(path: Path) -> None:
    # Within $…$ it reads \, as a comma, and * or _ after punctuation as emphasis. Blocks are safe.
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    formulas = re.findall(r"\$([^$\n]+)\$", re.sub(r"`[^`\n]*`", "", text))
    changed = r"\\[^\sA-Za-z]|\*|(?<![A-Za-z0-9])_"
    assert [formula for formula in formulas if re.search(changed, formula)] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_every_block_says_what_it_is(block: Block) -> None:
    if block.kind == "python":
        assert re.fullmatch(r"|no-run|file=\w+\.py", block.detail), block
    else:
        assert block.kind in (*SHELL, *NOT_CODE), block
        assert not block.detail, block


@pytest.mark.parametrize(
    "path",
    dict.fromkeys(block.path for block in PYTHON),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_python_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # No data and no cache of this machine's: what runs here runs everywhere.
    monkeypatch.delenv("APRUNE_DATA", raising=False)
    monkeypatch.setenv("APRUNE_CACHE", str(tmp_path / "cache"))
    module = ModuleType(f"document_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in (block for block in PYTHON if block.path == path):
        # Empty lines in front, so that a traceback names the line of the document.
        code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
        name = block.detail.partition("file=")[2]
        if name:
            Path(name).write_text(block.text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        elif not block.detail:
            exec(code, module.__dict__)
    for block in PYTHON:
        if block.path == path and "file=" in block.detail:
            sys.modules.pop(block.detail.removeprefix("file=").removesuffix(".py"), None)


@pytest.mark.parametrize(
    "words", [words for _, words in COMMANDS], ids=[where for where, _ in COMMANDS]
)
def test_commands_are_real(words: list[str]) -> None:
    program = os.path.basename(words[0])  # noqa: PTH119 - .venv/bin/aprune is aprune
    if program == "aprune":
        check_values(parse(words[1:]))
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    else:
        assert program in FOREIGN, f"{program} is not known here: a typing error?"


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse as the command line would, but call nothing; return what the verb would be called with."""
    called: list[dict[str, Any]] = []

    def disarm(command: Any) -> None:
        command.callback = lambda **given: called.append(given)
        for below in getattr(command, "commands", {}).values():
            disarm(below)

    command: Any = typer.main.get_command(make_app())
    disarm(command)
    # `main` takes --debug out, wherever it stands.
    rest = [word for word in arguments if word != "--debug"]
    command.main(rest, prog_name="aprune", standalone_mode=False)
    return called[-1] if called else {}  # `--help` calls nothing


def check_values(given: dict[str, Any]) -> None:
    """Look up the names that are only checked once a verb runs."""
    if given.get("parent"):
        check_parent(given["parent"])
    for name in (given.get("method") or given.get("methods") or "").split(","):
        assert name in ("", "dense", *METHODS), name
    for key in ("task", "search_task", "new_task"):
        name = given.get(key) or "digits"
        assert name.startswith("folder:") or name in task_names(), name


def test_a_wrong_command_would_be_noticed() -> None:
    good = ["find", "--parent", "mlp", "--task", "digits", "--sparsity", "0.9"]
    assert parse(good)["sparsity"] == "0.9"
    for wrong in (
        ["find", "--parent", "mlp", "--task", "digits"],
        [*good, "--nonsense", "3"],
        [*good, "--steps", "many"],
        ["seek"],
        ["data", "burn"],
        ["show"],
    ):
        with pytest.raises(Exception, match=r".") as caught:
            parse(wrong)
        assert hasattr(caught.value, "format_message"), wrong
    for key, value in (("parent", "vgg20"), ("method", "magic"), ("task", "cifar1000")):
        with pytest.raises((aprune.ApruneError, AssertionError)):
            check_values({key: value})


def test_commands_are_found_in_shell_blocks() -> None:
    text = "$ A=1 aprune show a \\\n  b | head # why\nprinted\n$ make test && aprune demo\n"
    block = Block(ROOT / "x.md", 10, "console", "", text)
    assert list(read_commands(block)) == [
        ("x.md:11", ["aprune", "show", "a", "b"]),
        ("x.md:11", ["head"]),
        ("x.md:13", ["make", "test"]),
        ("x.md:13", ["aprune", "demo"]),
    ]


FUNCTIONS = [name for name in aprune.__all__ if inspect.isfunction(getattr(aprune, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_says_what_goes_in_and_what_comes_out(name: str) -> None:
    function = getattr(aprune, name)
    text = inspect.getdoc(function) or ""
    sections = dict(re.findall(r"^(\w+):\n((?:    .*\n?|\n)+)", text, flags=re.MULTILINE))
    told = re.findall(r"^    (\w+): \S", sections.get("Args", ""), flags=re.MULTILINE)
    assert told == list(inspect.signature(function).parameters)
    assert {"Returns", "Yields"} & set(sections)
    assert "Example" in sections


def read_settings() -> list[tuple[Path, str, dict[str, str]]]:
    """Return the marked tables: file, class, and the first two columns without their back-ticks."""
    found = []
    for path in FILES:
        pieces = re.split(r"<!-- settings: (\w+) -->", path.read_text(encoding="utf-8"))
        for name, rest in zip(pieces[1::2], pieces[2::2], strict=True):
            table = re.match(r"\s*((?:\|.*\n)+)", rest)
            assert table, f"{path.name}: no table under the mark of {name}"
            rows = [line.strip("|\n ").split("|") for line in table[1].splitlines()[2:]]
            found.append((path, name, {r[0].strip(" `"): r[1].strip(" `") for r in rows}))
    return found


def test_tables_of_settings_fit_the_code() -> None:
    tables = read_settings()
    assert {name for _, name, _ in tables} >= {"AP", "IMP", "Random", "Recipe"}
    for path, name, rows in tables:
        expected = {
            field.name: "" if field.default is dataclasses.MISSING else repr(field.default)
            for field in dataclasses.fields(getattr(aprune, name))
        }
        assert rows == {key: value.replace("'", '"') for key, value in expected.items()}, path.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://|mailto:", target):
            file, _, heading = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), f"{path.name} links to {target}"
            assert not heading or heading in list_headings(there), f"{path.name} links to {target}"


def list_headings(path: Path) -> set[str]:
    """Return the headings of a document as links name them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_tables_of_speed_are_those_of_the_benchmark(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    results = shutil.copy(root / "benchmarks/results/h200.json", tmp_path)
    script = root / "benchmarks/draw_speed.py"
    done = subprocess.run(
        [sys.executable, str(script), "--results", results],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    written = (root / "docs/performance.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 40
    assert [line for line in lines if line not in written] == []
    figures = {path.name for path in (root / "benchmarks/results").glob("*.png")}
    assert {path.name for path in tmp_path.glob("*.png")} == figures
