"""Where to work, and the networks that go there."""

import pytest
import torch
from torch import nn

from aprune import build_parent, load_task
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.training.device import choose_device, mixed_precision, place
from aprune.training.engine import Engine
from aprune.training.network import network_for

CPU = torch.device("cpu")


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(SettingError, match="device cuda:1 was asked for, but PyTorch sees only 1"):
        choose_device("cuda:1")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, device: str | torch.device
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(SettingError, match="sees no GPU: use --device cpu"):
        choose_device(device)


def test_an_unknown_device_is_an_error() -> None:
    assert choose_device(CPU) == CPU
    with pytest.raises(SettingError, match="unknown device 'gpu': expected auto, cpu or cuda"):
        choose_device("gpu")


def test_the_cpu_computes_in_full_precision() -> None:
    layer = place(nn.Linear(3, 2), CPU)
    with mixed_precision(CPU):
        assert layer(torch.ones(1, 3)).dtype == torch.float32


def test_the_engine_repeats_the_step_in_every_phase() -> None:
    steps: list[str] = []
    engine = Engine(lambda: steps.append("done"), CPU)
    for phase in ("dense", "dense", "frozen"):
        engine.run(phase)
    assert len(steps) == 3


@pytest.mark.parametrize("parent", ["mlp", "conv_bn", "resnet20"])
def test_a_network_without_weights_is_whole_once_initialised(parent: str) -> None:
    task = load_task("digits", images=20)
    bare = network_for(parent, task, CPU, seed=0, weights=False)
    built = network_for(parent, task, CPU, seed=0, weights=True)
    for network in (bare, built):
        initialise(network, seed=1)
    assert bare.parent_name == built.parent_name == parent
    assert list(bare.state_dict()) == list(built.state_dict())
    for name, value in built.state_dict().items():
        assert torch.equal(bare.state_dict()[name], value), name


def test_a_network_with_weights_has_the_parent_s_own() -> None:
    task = load_task("digits", images=20)
    mine = build_parent("mlp", task, seed=7)
    theirs = network_for(mine, task, CPU, seed=0, weights=True)
    assert theirs is not mine
    assert torch.equal(theirs.fc1.weight, mine.fc1.weight)
    named = network_for("mlp", task, CPU, seed=7, weights=True)
    assert torch.equal(named.fc1.weight, mine.fc1.weight)
