"""Several processes train as one does: 2 and 4 of them on the CPU, started by torchrun."""

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import aprune as ap
from aprune.errors import SettingError
from aprune.training.engine import choose_engine
from aprune.training.ranks import Team, _current, fingerprint
from aprune.training.whole_batch import whole_batches
from helpers import torchrun
from ranks import worker

TOLERANCE = 1e-5
"""Of w, whose size is about 1: what adding up in another order makes of a whole search."""


@pytest.fixture(scope="module", params=[2, 4])
def team(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(f"team{request.param}")
    worker.train_on(folder / "begun alone", worker.BEGUN)
    ended = subprocess.run(
        torchrun(request.param, worker.__file__, str(folder)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(list(folder.glob("*.json"))) == request.param
    return folder


def test_all_hold_the_same_bits(team: Path) -> None:
    first, *others = (json.loads(path.read_text()) for path in sorted(team.glob("*.json")))
    for other in others:
        assert other["digests"] == first["digests"]


def test_together_is_as_alone(team: Path) -> None:
    numbers = load_file(team / "numbers.safetensors")
    for case, do in worker.CASES.items():
        for name, expected in do().items():
            found = numbers[f"{case}/{name}"]
            if expected.dtype.is_floating_point:
                torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE, msg=case)
            else:
                assert torch.equal(found, expected), (case, name)


def test_another_number_of_them_goes_on(team: Path, tmp_path: Path) -> None:
    expected, _ = worker.train_on(tmp_path)
    left = 40 - (worker.BEGUN - 1)
    alone, steps = worker.train_on(team / "begun together")
    assert steps == left
    assert json.loads((team / "1.json").read_text())["steps"] == left
    together = load_file(team / "numbers.safetensors")
    for name, value in expected.items():
        for found in (alone[name], together[f"taken up/{name}"]):
            torch.testing.assert_close(found, value, rtol=0, atol=TOLERANCE, msg=name)


def test_they_talk(team: Path) -> None:
    for path in team.glob("*.json"):
        about = json.loads(path.read_text())
        assert about["complaint"].startswith("process 1 of ")
        assert "other numbers than the first one in a test" in about["complaint"]
        assert "other numbers than the first one after 2 steps" in about["stray"]
        assert about["votes"] == [True, False]
        assert about["handed"] == {"step": 3, "weight": [0, 1, 2], "flags": [True, False]}
        assert about["nothing"] is None
        # what were left would meet its end with Python's own, and crash the process
        assert not any("gloo" in name for name in about["threads"])


@pytest.mark.parametrize("number", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_cover_everything_once(number: int, size: int) -> None:
    things = list(range(number))
    shares = [things[Team(rank, size).share(number)] for rank in range(size)]
    assert list(itertools.chain(*shares)) == things
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_batch_too_small_for_all() -> None:
    token = _current.set(Team(0, 4))
    try:
        with pytest.raises(SettingError, match="3 images is too small for 4 processes"):
            ap.find("mlp", worker.DIGITS, sparsity=0.5, recipe=ap.Recipe(steps=2, lr=0.1, batch=3))
        with pytest.raises(SettingError, match="4 processes train it together"):
            choose_engine("fused", nn.Linear(2, 2), steps=10)
    finally:
        _current.reset(token)


def test_layers_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def fail() -> None:
        with whole_batches(model, Team(0, 2), batch=8):
            assert ["forward" in vars(module) for module in model] == [False, True, True]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all("forward" not in vars(module) for module in model)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("tracks", [True, False])
def test_norms_in_a_team_of_one_do_what_pytorch_does(
    momentum: float | None, tracks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    mine, theirs = (
        nn.BatchNorm2d(3, momentum=momentum, track_running_stats=tracks) for _ in range(2)
    )
    # a team of two in which the other one has nothing: sums are this one's own
    monkeypatch.setattr(Team, "add", lambda self, tensors: None)
    for _ in range(3):
        x = torch.randn(6, 3, 4, 4) * 3 + 1
        results, gradients = [], []
        for norm, size in ((mine, 2), (theirs, 1)):
            given = x.clone().requires_grad_()
            with whole_batches(norm, Team(0, size), batch=6):
                results.append(norm(given))
            results[-1].square().sum().backward()
            assert given.grad is not None
            gradients.append(given.grad)
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value)
    mine.eval()
    theirs.eval()
    with whole_batches(mine, Team(0, 2), batch=6):
        torch.testing.assert_close(mine(x), theirs(x))


@pytest.mark.parametrize("change", [lambda t: t.flip(0), lambda t: t + 1e-7, lambda t: -t])
def test_fingerprints_tell_numbers_apart(change: Any) -> None:
    numbers: Tensor = torch.tensor([1.0, 2.0, 3.0])
    assert fingerprint(numbers) == fingerprint(numbers.clone())
    assert fingerprint(numbers) != fingerprint(change(numbers))
