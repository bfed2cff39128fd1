"""Benchmarks are not run here, but what they import has to be there: a name that moved is noticed."""

import importlib.util
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
