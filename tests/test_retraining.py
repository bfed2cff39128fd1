"""`transfer`: fresh weights under a mask on a new task."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from aprune import (
    AP,
    Architecture,
    Random,
    Recipe,
    build_parent,
    find,
    load_model,
    load_task,
    transfer,
)
from aprune.errors import ArchitectureError
from aprune.initialise import initialise
from aprune.maths.schedules import one_cycle
from helpers import other_world

OLD = load_task("digits", classes=[0, 1, 2, 3], images=120, seed=0)
NEW = load_task("digits", classes=[5, 6, 7], images=60, seed=0)
QUICK = Recipe(steps=25, lr=0.05, batch=30)
STILL = Recipe(steps=2, lr=1.0, schedule=lambda step, steps: 0.0)  # weights end where they start


def strays(model: nn.Module, arch: Architecture) -> int:
    weights = dict(model.named_parameters())
    return sum(int(weights[n][~mask].count_nonzero()) for n, mask in arch.masks().items())


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_the_result_is_an_ordinary_network(parent: str) -> None:
    arch = find(parent, OLD, AP(), sparsity=0.8, recipe=QUICK, device="cpu")
    result = transfer(arch, parent, NEW, recipe=QUICK, device="cpu")
    model = result.model
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    assert not any("parametriz" in name for name in model.state_dict())
    assert all(p.is_leaf and p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
    assert not model.training
    assert result.architecture is not None
    assert strays(model, result.architecture) == 0
    # the accuracy is that of the model, on the new task's own test images
    right = result.predict(NEW.test_images) == NEW.test_labels
    assert result.accuracy == right.float().mean().item()
    assert result.accuracy > 0.7
    assert len(result.curve.loss) == 25


def test_the_mask_is_the_architecture_where_shapes_agree() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.8)
    result = transfer(arch, "mlp", NEW, recipe=QUICK, device="cpu")
    for name in ("fc1.weight", "fc2.weight"):
        weights = dict(result.model.named_parameters())[name]
        assert torch.equal(weights != 0, arch.mask(name))
    same = load_task("digits", classes=[4, 5, 6, 7], images=60)
    assert transfer(arch, "mlp", same, recipe=STILL, device="cpu").architecture == arch


@pytest.mark.parametrize("parent", ["conv_bn", "mlp", "resnet20"])
@pytest.mark.parametrize("mismatch", ["random", "dense"])
def test_channels_size_and_classes_may_differ(parent: str, mismatch: Any) -> None:
    task = other_world()
    arch = find(parent, OLD, Random(), sparsity=0.8)
    result = transfer(
        arch, parent, task, recipe=STILL.but(steps=1), mismatch=mismatch, device="cpu"
    )
    fitted = result.architecture
    assert fitted is not None
    assert result.model(torch.zeros(2, 3, 12, 12)).shape == (2, 5)
    assert strays(result.model, fitted) == 0
    layers = {layer.name: layer for layer in fitted.layers()}
    for name in arch.names:
        if arch.shapes[name] == fitted.shapes[name]:
            assert torch.equal(arch.mask(name), fitted.mask(name))
        else:
            had = next(layer.density for layer in arch.layers() if layer.name == name)
            expected = 1.0 if mismatch == "dense" else had
            assert layers[name].density == pytest.approx(expected, abs=1 / layers[name].total)
    assert len([n for n in arch.names if arch.shapes[n] != fitted.shapes[n]]) == 2


def test_none_is_the_dense_parent() -> None:
    result = transfer(None, "mlp", NEW, recipe=QUICK, device="cpu")
    assert result.architecture is None
    assert result.provenance["sparsity"] == 0.0
    assert bool((result.model.fc1.weight != 0).all())
    assert result.accuracy > 0.7


def test_fresh_weights_are_fresh_even_for_a_trained_parent() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.5)
    trained = transfer(None, "mlp", OLD, recipe=QUICK, device="cpu").model
    one = transfer(arch, trained, NEW, recipe=QUICK, device="cpu")
    two = transfer(arch, "mlp", NEW, recipe=QUICK, device="cpu")
    assert all(map(torch.equal, one.model.parameters(), two.model.parameters()))


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_a_seed_decides_bit_for_bit(parent: str) -> None:
    arch = find(parent, OLD, Random(), sparsity=0.8)
    before = torch.get_rng_state()
    runs = [transfer(arch, parent, NEW, seed=s, recipe=QUICK, device="cpu") for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0].accuracy == runs[1].accuracy
    assert runs[0].curve == runs[1].curve
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert runs[0].curve != runs[2].curve


def test_test_images_do_not_train() -> None:
    spoilt = dataclasses.replace(NEW, test_images=torch.zeros_like(NEW.test_images))
    curves = [transfer(None, "mlp", t, recipe=QUICK, device="cpu").curve for t in (NEW, spoilt)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("init", ["normal", "he", "he_density", "he_fan_in", "auto"])
def test_how_fresh_weights_are_drawn_is_a_choice(init: Any) -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.75)
    result = transfer(arch, "mlp", NEW, init=init, epsilon=0.02, recipe=STILL, device="cpu")
    expected = {"normal": 0.02, "he": (2 / 256) ** 0.5}.get(init, (2 / 64) ** 0.5)
    weight = result.model.fc2.weight
    assert weight[weight != 0].square().mean().sqrt().item() == pytest.approx(expected, rel=0.1)
    assert result.provenance["init"] == init


def test_excluded_layers_stay_dense() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.8, exclude="fc3.*")
    result = transfer(arch, "mlp", NEW, recipe=QUICK, device="cpu")
    assert result.architecture is not None
    assert result.architecture.names == ("fc1.weight", "fc2.weight")
    assert bool((result.model.fc3.weight != 0).all())


def test_biases_and_norms_may_be_masked_too() -> None:
    arch = find("conv_bn", OLD, Random(), sparsity=0.5, include="*")
    result = transfer(arch, "conv_bn", NEW, recipe=QUICK, device="cpu")
    assert result.architecture is not None
    assert strays(result.model, result.architecture) == 0
    assert result.accuracy > 0.5


def test_another_parent_s_architecture_is_refused() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.8)
    with pytest.raises(ArchitectureError, match="another parent"):
        transfer(arch, "conv", NEW, recipe=QUICK, device="cpu")


def test_a_network_or_a_function_is_a_parent_too() -> None:
    def make(task: Any) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, len(task.classes))
        )

    arch = find(make, OLD, AP(), sparsity=0.5, recipe=QUICK, device="cpu")
    result = transfer(arch, make, NEW, recipe=QUICK, device="cpu")
    assert result.model(torch.zeros(1, 1, 8, 8)).shape == (1, 3)
    assert result.provenance["parent"] == "Sequential"


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_fresh_weights_are_not_those_that_a_search_with_the_same_seed_had(parent: str) -> None:
    before = build_parent(parent, OLD)
    initialise(before, scheme="he", seed=0)  # as a search starts
    after = transfer(None, parent, OLD, seed=0, recipe=STILL, device="cpu").model
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        if one.dim() > 1:
            together = torch.stack([one.flatten(), other.flatten()]).detach()
            assert abs(together.corrcoef()[0, 1].item()) < 0.2


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    arch = find("conv_bn", OLD, Random(), sparsity=0.8)
    odd = QUICK.but(schedule=partial(one_cycle, warmup=0.5))  # a function without a name
    result = transfer(arch, "conv_bn", NEW, recipe=odd, device="cpu")
    result.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert torch.equal(loaded.predict(NEW.test_images), result.predict(NEW.test_images))
    assert loaded.classes == NEW.classes
    assert loaded.provenance["accuracy"] == result.accuracy
