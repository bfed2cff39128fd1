"""Machines that go wrong: GPUs, folders and other processes; said in one line, and nothing is lost."""

import gc
import json
import shutil
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import aprune as ap
from aprune.cli import main
from aprune.cli.option import with_room
from aprune.errors import DeviceError
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.training import evaluate
from aprune.training.device import watched
from aprune.training.fit import Training

DIGITS = ap.load_task("digits", classes=[0, 1, 2], images=60, seed=0)
FIND = "find --parent mlp --task digits --sparsity 0.5 --steps 10 --batch 64 --device cpu"


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, error: Exception) -> None:
    advance = Training.advance

    def advance_or_fail(self: Training) -> None:
        if self.step == step:
            raise error
        advance(self)

    monkeypatch.setattr(Training, "advance", advance_or_fail)


def no_room(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """A device whose memory is too small for larger batches."""
    advance = Training.advance

    def advance_or_fail(self: Training) -> None:
        if self._loop.batch > largest:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"
            )
        advance(self)

    monkeypatch.setattr(Training, "advance", advance_or_fail)


def test_too_little_memory_names_the_batch_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_room(monkeypatch, largest=20)
    out = ["--out", str(tmp_path / "out")]
    assert main([*FIND.split(), *out]) == 2
    assert capsys.readouterr().err == (
        "aprune: the GPU has too little memory for batches of 64: try batches of 32 (--batch 32), or"
        " --shrink-batch\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert main([*FIND.split(), *out, "--shrink-batch", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == (
        "aprune: the GPU has too little memory for batches of 64; trying batches of 32\n"
        "aprune: the GPU has too little memory for batches of 32; trying batches of 16\n"
    )
    (about,) = json.loads(said.out)["architectures"]
    assert ap.Architecture.load(about["file"]).provenance["recipe"]["batch"] == 16
    dense = "transfer --dense --parent mlp --task digits --steps 4 --batch 64 --device cpu"
    assert main([*dense.split(), "--shrink-batch"]) == 0
    assert "trying batches of 16" in capsys.readouterr().err


def test_a_batch_that_cannot_be_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_room(monkeypatch, largest=0)
    assert main([*FIND.split(), "--out", str(tmp_path / "out"), "--shrink-batch"]) == 2
    assert capsys.readouterr().err.endswith("for batches of 1: use a smaller network\n")


LOST = RuntimeError(
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later"
)


@pytest.mark.usefixtures("often")
def test_a_gpu_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = ap.Recipe(20, 0.05)
    whole = ap.find("mlp", DIGITS, sparsity=0.5, recipe=recipe)
    fail_at(monkeypatch, 5, LOST)
    with pytest.raises(DeviceError, match=r"unspecified launch failure\): .* goes on") as caught:
        ap.find("mlp", DIGITS, sparsity=0.5, recipe=recipe, checkpoint=tmp_path)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir())[-1].stem.endswith("-0000000005")
    monkeypatch.undo()
    assert ap.find("mlp", DIGITS, sparsity=0.5, recipe=recipe, checkpoint=tmp_path) == whole


@pytest.mark.parametrize(
    "reason",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_memory_that_a_library_lacks_is_no_broken_gpu(reason: str) -> None:
    expected = pytest.raises(
        DeviceError, match="too little memory for batches of 8: try batches of 4"
    )
    with expected, watched(batch=8):
        raise RuntimeError(reason)


def test_evaluation_takes_as_many_images_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Narrow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x.flatten(1))

    model, most = Narrow(64, 3), 1000
    expected = evaluate(model, DIGITS)
    most = 7
    assert evaluate(model, DIGITS) == expected
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(model, DIGITS)


@pytest.mark.parametrize("error", [LOST, torch.OutOfMemoryError("CUDA out of memory")], ids=type)
def test_a_gpu_may_give_up_in_the_evaluation_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(sys.modules["aprune.training.evaluate"], "_label", fail)
    recipe = ap.Recipe(2, 0.05)
    for do in (
        lambda: ap.find("mlp", DIGITS, sparsity=0.5, recipe=recipe),
        lambda: ap.transfer(None, "mlp", DIGITS, recipe=recipe),
        lambda: list(ap.transfer_many([ap.Retraining(None, "mlp", DIGITS, recipe=recipe)])),
    ):
        with pytest.raises(DeviceError):
            do()


def test_what_did_not_fit_is_gone_before_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[nn.Module]] = []
    begin = Training.__init__

    def noting(self: Training, model: nn.Module, *more: Any, **settings: Any) -> None:
        assert not any(earlier() for earlier in models)
        models.append(weakref.ref(model))
        begin(self, model, *more, **settings)

    def do(batch: int) -> ap.Architecture:
        recipe = ap.Recipe(2, 0.05, batch=batch)
        return ap.find("mlp", DIGITS, sparsity=0.5, recipe=recipe, device="cpu")

    monkeypatch.setattr(Training, "__init__", noting)
    no_room(monkeypatch, largest=20)
    gc.disable()  # it might come by in between
    try:
        with_room(do, {"batch": 60}, shrink=True)
    finally:
        gc.enable()
    assert len(models) == 3


def test_what_a_machine_does_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = TaskChoice("digits", classes=(0, 1), images=40)
    small = Comparison(
        "mlp",
        digits,
        digits,
        ("ap", "dense"),
        (0.5,),
        (0,),
        search_steps=8,
        retrain_steps=8,
        lrs=(0.1,),
    )
    for error in (LOST, torch.OutOfMemoryError("CUDA out of memory")):
        with monkeypatch.context() as patch:
            fail_at(patch, 3, error)
            with pytest.raises(DeviceError):
                compare(small, tmp_path, device="cpu")
    assert list(tmp_path.glob("runs/*")) == []
    assert not compare(small, tmp_path, device="cpu")["diverged"].any()


def test_other_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, 1, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ap.find("mlp", DIGITS, sparsity=0.5, recipe=ap.Recipe(4, 0.05))


@pytest.mark.usefixtures("often")
def test_an_output_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, out = Training.advance, tmp_path / "out"

    def advance_without_folder(self: Training) -> None:
        advance(self)
        if self.step == 5:
            shutil.rmtree(out)

    monkeypatch.setattr(Training, "advance", advance_without_folder)
    assert main([*FIND.split(), "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["mlp-digits-ap-0.5-seed0.arch.safetensors"]


def test_two_at_the_same_work(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aprune", *FIND.split(), "--steps", "1000000"]
    with subprocess.Popen([*command, "--out", str(tmp_path / "out")]) as first:
        try:
            while not list(tmp_path.glob("out/checkpoints/*/claim")):
                assert first.poll() is None
                time.sleep(0.05)
            second = subprocess.run(
                [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True
            )
        finally:
            first.kill()
    assert (second.returncode, second.stdout) == (2, "")
    assert "another process is at the same work" in second.stderr
    assert second.stderr.count("\n") == 1
    # the first one was killed: its claim is free
    assert main([*FIND.split(), "--out", str(tmp_path / "out")]) == 0
