"""Benchmarks are not run here, but what they import has to be there: a name that moved is noticed."""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))
# of what is compared with, which no test installs
FOREIGN = {"abess", "lightning", "pyscipopt", "timm", "torchvision"}


def test_there_are_some() -> None:
    assert len(SCRIPTS) > 20


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_imports_are_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(script.parent))  # they import from each other
    spec = importlib.util.spec_from_file_location(f"benchmark_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        if missing.name not in FOREIGN:
            raise


def test_a_sitting_shares_its_runs_and_is_gone_on_with(tmp_path: Path) -> None:
    def sit(*words: str | Path) -> subprocess.CompletedProcess[str]:
        script = SCRIPTS[0].parent / "sitting.py"
        command = [sys.executable, str(script), "--processes", "2", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    part = "--scale small --parent logistic --budget quick --seeds 1 --sparsity 0.9"
    asked = [f"reproduce {figure} {part}" for figure in ("figure6", "figure7")]
    first = sit("--out", tmp_path / "first", *asked)
    assert (first.returncode, first.stderr) == (0, "")
    again = sit("--archive", tmp_path / "first/runs.tar.xz", "--out", tmp_path / "again", *asked)
    assert " 0 new runs" in again.stdout
    packed = [tmp_path / name / "runs.tar.xz" for name in ("first", "again")]
    assert packed[0].read_bytes() == packed[1].read_bytes()
    with tarfile.open(packed[0]) as archive:
        there = {path.name for path in (tmp_path / "first/runs").iterdir()}
        assert {Path(name).name for name in archive.getnames()} == there
    assert len(there) == 3 + 4 * (3 + 2)  # searches; four methods, three rates, two figures
    assert sit("--out", tmp_path / "bad", "reproduce figure9").returncode == 2
