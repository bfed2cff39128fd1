"""Numbers and machines that go wrong: noticed, said in one line, and nothing good is lost."""

import json
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import aprune as ap
from aprune.cli import main
from aprune.errors import DeviceError, NetworkWarning, TaskError, TrainingError
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.training import checkpoint
from aprune.training.fit import Training
from helpers import other_world

DIGITS = ap.load_task("digits", classes=[0, 1, 2], images=60, seed=0)
FIND = "find --parent mlp --task digits --sparsity 0.5 --steps 10 --batch 64 --device cpu"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state after every step."""
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", float("inf"))


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, error: Exception) -> None:
    advance = Training.advance

    def advance_or_fail(self: Training) -> None:
        if self.step == step:
            raise error
        advance(self)

    monkeypatch.setattr(Training, "advance", advance_or_fail)


@pytest.mark.usefixtures("often")
def test_the_last_good_state_outlives_numbers_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Training.advance

    def spoil(self: Training) -> None:
        advance(self)
        if self.step == 7:
            with torch.no_grad():
                next(self._model.parameters()).fill_(torch.nan)

    def train() -> None:
        ap.transfer(None, "mlp", DIGITS, recipe=ap.Recipe(20, 0.1), checkpoint=tmp_path)

    monkeypatch.setattr(Training, "advance", spoil)
    with pytest.raises(TrainingError, match="the loss is nan at step 7 of 20: try"):
        train()
    newest = sorted(tmp_path.iterdir())[-1]
    assert newest.stem.endswith("-0000000006")
    tensors = load_file(newest)
    assert all(t.isfinite().all() for name, t in tensors.items() if name.startswith("model/"))
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the state is sound
        train()


class Deaf(nn.Module):
    """A network that does not listen."""

    def __init__(self, task: ap.Task) -> None:
        super().__init__()
        self.fc = nn.Linear(64, task.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.zeros_like(x.flatten(1)) * x.flatten(1))


def test_a_dead_network_is_noticed_once() -> None:
    with pytest.warns(NetworkWarning) as said:
        ap.transfer(None, Deaf, DIGITS, recipe=ap.Recipe(200, 0.1), device="cpu")
    (one,) = said
    assert str(one.message).startswith(
        "after 60 of 200 steps the network gives one and the same output for all images: it is dead"
    )


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_a_living_network_is_not_taken_for_dead(parent: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ap.transfer(None, parent, DIGITS, recipe=ap.Recipe(60, 0.05), device="cpu")


def test_looking_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> dict[str, torch.Tensor]:
        recipe = ap.Recipe(80, 0.05)
        return ap.transfer(None, "conv_bn", DIGITS, recipe=recipe, device="cpu").model.state_dict()

    seen = train()
    monkeypatch.setattr(Training, "_warn_if_dead", lambda self: None)
    unseen = train()
    assert all(torch.equal(seen[name], unseen[name]) for name in unseen)


def test_a_layer_that_loses_its_last_connection_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2))
    search = ap.attach(model, ap.AP(sparsity=0.9, steps=10, dense_start=0.0))
    with torch.no_grad():
        search.w["2.weight"].fill_(-1.0)
    x = torch.randn(16, 4)

    def descend() -> None:
        for _ in range(10):
            nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            search.step()

    with pytest.warns(NetworkWarning, match=r"no connection is left in 2\.weight, so nothing"):
        descend()


def test_comparisons_tell_it_in_their_rows(tmp_path: Path) -> None:
    digits = TaskChoice("digits", classes=(0, 1), images=40)
    dead = Comparison(
        "conv",
        digits,
        digits,
        ("magnitude",),
        (0.999,),
        (0,),
        search_steps=60,
        retrain_steps=60,
        lrs=(0.1,),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", NetworkWarning)
        frame = compare(dead, tmp_path, device="cpu")
    assert frame["empty_layers"].item() > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda t: {"train_labels": torch.zeros_like(t.train_labels)},
            "are of class kind 0; give some of",
        ),
        (
            lambda t: {"train_images": torch.full_like(t.train_images, 9)},
            "are the same; give images",
        ),
    ],
)
def test_nothing_to_tell_apart(change: Callable[[ap.Task], Any], complaint: str) -> None:
    task = other_world()
    poor = replace(task, **change(task))
    for do in (
        lambda: ap.find("mlp", poor, sparsity=0.5),
        lambda: ap.transfer(None, "mlp", poor),
        lambda: list(ap.transfer_many([ap.Retraining(None, "mlp", poor)])),
    ):
        with pytest.raises(TaskError, match=complaint):
            do()


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
