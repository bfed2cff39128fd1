"""Benchmarks are not run here, but what they import has to be there: a name that moved is noticed."""

import importlib.util
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from aprune import load_task

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))
# of what is compared with, which no test installs
FOREIGN = {"abess", "lightning", "pyscipopt", "timm", "torchvision"}


def test_there_are_some() -> None:
    assert len(SCRIPTS) > 20


def load(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_imports_are_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(script.parent))  # they import from each other
    try:
        load(script)
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


def test_a_sitting_that_is_ended_packs_what_there_is(tmp_path: Path) -> None:
    script, long = SCRIPTS[0].parent / "sitting.py", "reproduce all --scale small --parent mlp"
    command = [sys.executable, str(script), "--processes", "1", "--out", str(tmp_path), long]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while not list(tmp_path.glob("runs/[!.]*.json")):
            time.sleep(0.1)
            assert process.poll() is None
        process.terminate()
    assert process.returncode == 143
    there = {path.name for path in (tmp_path / "runs").glob("[!.]*.json")}
    with tarfile.open(tmp_path / "runs.tar.xz") as archive:
        assert {Path(name).name for name in archive.getnames()} == there


def test_published_numbers_are_compared_with_runs_of_their_own(tmp_path: Path) -> None:
    script = SCRIPTS[0].parent / "published.py"
    task = load_task("digits", classes=[0, 1])
    runs = load(script).plan("conv_bn", task, 160.0, 0)
    assert len(runs) == 1 + 5 * 2
    for (method, sparsity), run in runs.items():
        recipe = run.recipe
        assert (recipe.lr, recipe.momentum, recipe.nesterov) == (0.1, 0.9, True)
        assert (recipe.weight_decay, recipe.clip, recipe.mixup) == (1e-4, None, 0.0)
        assert recipe.steps == round(160 * len(task.train_labels) / recipe.batch)
        rates = [recipe.schedule(recipe.steps * epoch // 160, recipe.steps) for epoch in range(160)]
        assert [sum(rate == pytest.approx(r) for rate in rates) for r in (1, 0.1, 0.01)] == [
            60,
            60,
            40,
        ]
        if method != "dense":
            assert run.search.sparsities == (sparsity,)  # SynFlow takes all its rounds to get there
            assert run.search.recipe.batch == 10 * 2
            assert run.start == "rewound"  # to the weights that were scored

    def tell(*words: str) -> str:
        short = [*words, "--task", "digits", "--parent", "mlp", "--device", "cpu"]
        command = [sys.executable, str(script), *short, "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return done.stdout

    assert "11 runs are left" in tell("--epochs", "0.1", "--time-limit", "0.000001")
    first = tell("--epochs", "0.1")
    assert first.count("| 1 |") == 11
    assert tell("--epochs", "0.1") == first
    assert tell("--epochs", "0.3") != first  # what was run for longer is another run
