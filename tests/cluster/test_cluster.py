"""A comparison on a Ray cluster: the files of a local one, even if a node dies; and clear refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aprune.cli import main
from aprune.errors import FileError
from aprune.experiments import cluster
from aprune.experiments.cluster import _with_tasks, _without_tasks
from aprune.experiments.comparison import compare
from aprune.experiments.plan import Arm, Comparison, Plan, TaskChoice, Trial
from aprune.experiments.store import Store
from aprune.training import choose_device
from cluster.run import COMMAND

HERE = Path(__file__).parent


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_node_that_dies_leaves_no_trace(tmp_path: Path) -> None:
    out, about = tmp_path / "cluster", tmp_path / "about.json"
    ended = subprocess.run(
        [sys.executable, str(HERE / "run.py"), str(out), str(about)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RAY_ADDRESS": ""},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = json.loads(about.read_text())
    assert (told["status"], told["alive"]) == (0, 1)
    whole = tmp_path / "whole"
    assert main([*COMMAND.split(), "--device", "cpu", "--out", str(whole)]) == 0
    found, expected = files(out), files(whole)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    runs = [name for name in expected if name.startswith("runs/")]
    assert told["seen"][0] < len(runs)  # it died in the middle


@pytest.mark.parametrize(
    ("words", "environment", "complaint"),
    [
        (["--on", "mars"], {}, "got 'mars' for --on: expected one of here, ray"),
        (["--on", "ray"], {"RAY_ADDRESS": "127.0.0.1:1"}, "Ray cannot be reached"),
    ],
)
def test_refusals(
    words: list[str],
    environment: dict[str, str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([*COMMAND.split(), *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*COMMAND.split(), "--on", "ray", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'aprune[ray]'" in capsys.readouterr().err


class Fake:
    """A cluster of so many GPUs, as far as what is asked of it goes; jobs are done here."""

    exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayError=ZeroDivisionError)

    def __init__(self, gpus: int) -> None:
        self.cluster_resources = lambda: {"CPU": 3.0, "GPU": float(gpus)}
        self.asked: list[dict[str, Any]] = []
        self.most = 0
        self.is_initialized, self.put = lambda: True, lambda value: value

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            self.asked.append(asked)
            return SimpleNamespace(
                remote=lambda runs, names, gpu, *more: lambda: function(runs, names, False, *more)
            )

        return SimpleNamespace(options=options)

    def wait(self, jobs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(jobs))
        return jobs[-1:], jobs[:-1]  # what came last is done first

    def get(self, job: Any) -> Any:
        return job()


@pytest.mark.parametrize("gpus", [0, 2])
def test_gpus_are_asked_for_and_searches_go_first(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Fake(gpus)
    monkeypatch.setattr(cluster, "_import_ray", lambda: ray)
    digits = TaskChoice("digits", classes=(0, 1), images=20)
    steps: dict[str, Any] = {"search_steps": 4, "retrain_steps": 4, "lrs": (0.1,)}
    small = Comparison("mlp", digits, digits, ("ap", "dense"), (0.5,), tuple(range(5)), **steps)
    with cluster.Cluster() as launcher:
        compare(small, tmp_path / "there", launcher=launcher)
    compare(small, tmp_path / "here", device="cpu")
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert {(asked["num_gpus"], asked["num_cpus"]) for asked in ray.asked} == {(int(gpus > 0), 1)}
    names = [asked["name"] for asked in ray.asked]
    assert names == sorted(names)  # SearchRun, then TransferRun
    assert names.count("SearchRun") == 5
    # ten retrainings: one to a core, or several to a GPU, which has then two jobs
    assert names.count("TransferRun") == (10 if gpus == 0 else 4)
    assert ray.most == (gpus or 3)


def test_a_task_travels_once() -> None:
    digits = TaskChoice("digits", images=50)
    also = (("dense", "fine_tuned"), ("ap", "fine_tuned"))
    comparison = Comparison("mlp", digits, digits, ("ap", "dense"), also=also)
    plan = Plan(comparison, choose_device("cpu"))
    runs: list[Any] = [plan.search("ap", 0)]
    runs += [plan.final(Arm(name, 0.95, "fine_tuned"), 0, Trial(0.1, None)) for name, _ in also]
    tasks: list[Any] = []
    bare = [_without_tasks(run, tasks) for run in runs]
    assert len(tasks) == 1
    assert [_with_tasks(run, tasks) for run in bare] == runs
    described = [_with_tasks(run, tasks).describe() for run in bare]
    assert described == [run.describe() for run in runs]


@pytest.mark.parametrize(
    "name", ["../runs/a.json", "runs/../../a", "runs/.a", "checkpoints/a", "runs/", "/runs/a", "a"]
)
def test_only_files_of_a_store_are_adopted(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(FileError, match="no file of a store"):
        store.adopt({name: b""})
    assert list(tmp_path.iterdir()) == []


def test_results_are_adopted_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Store(tmp_path / "here")
    given = {"runs/a.json": b"{}", "architectures/a.arch.safetensors": b"", "networks/b": b""}
    here.adopt(given)
    assert here.names() == set(given)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "networks").write_text("no folder")
    with pytest.raises(FileError):
        Store(tmp_path / "other").adopt(given)
    assert not (tmp_path / "other" / "runs").exists()
