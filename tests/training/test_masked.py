"""Merged copies: the same network as without, in fewer numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aprune.parents.vgg
from aprune import Random, Recipe, find, transfer
from aprune.initialise import initialise
from aprune.parents.vgg import VGG
from aprune.tasks import Task
from aprune.training import KeepMasked, fit
from aprune.training.fit import Training
from aprune.training.masked import MergedLinear, copies_of_inputs, decay_of_start, fit_masked
from helpers import other_world

RECIPE = Recipe(steps=4, lr=0.2, batch=6)


def small_images(size: int = 32) -> Task:
    return other_world(channels=1, size=size, classes=3)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make VGG networks slim: copies are copies at any width."""
    monkeypatch.setattr(aprune.parents.vgg, "_WIDTHS", (8, 8, 16, 16, 16))
    monkeypatch.setattr(aprune.parents.vgg, "_HIDDEN", 64)


def network() -> VGG:
    model = VGG((1, 32, 32), 3, depth=11, batch_norm=True)
    initialise(model, scheme="he", seed=0)
    return model


def masks_of(model: nn.Module, density: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(p.shape, generator=generator) < density
        for name, p in model.named_parameters()
        if p.dim() > 1
    }


RECIPES = {
    "momentum": RECIPE.but(weight_decay=0.1),
    "nesterov": RECIPE.but(nesterov=True, weight_decay=0.1),
    "plain": RECIPE.but(momentum=0.0, weight_decay=0.1),
    "clipped": RECIPE.but(clip=0.5),
    "rising": RECIPE.but(schedule="warm_up", weight_decay=0.5),
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("density", [0.2, None])
def test_merged_training_gives_the_same_network(recipe: Recipe, density: float | None) -> None:
    task = small_images()
    # in double precision rounding cannot be taken for a mistake
    merged, plain = network().double(), network().double()
    masks = masks_of(plain, density) if density else {}
    start = {name: p.detach().clone() for name, p in plain.named_parameters()}
    curve = fit_masked(merged, masks, task, recipe, seed=0)
    expected = fit(plain, task, recipe, seed=0, hooks=[KeepMasked(plain, masks)] if masks else [])
    assert curve.loss == pytest.approx(expected.loss, rel=1e-6)
    for name, one in merged.named_parameters():
        other, mask = plain.get_parameter(name), masks.get(name, torch.tensor(True))
        moved = (other - start[name] * mask).abs().max().item()
        assert moved > 1e-4 or name.startswith("features")  # norms leave their biases no gradient
        assert (one - other).abs().max().item() < 1e-5 * moved + 1e-9, name
    for name, mask in masks.items():
        assert int(merged.get_parameter(name)[~mask].count_nonzero()) == 0


@pytest.mark.usefixtures("narrow")
def test_the_network_is_an_ordinary_one_afterwards() -> None:
    arch = find("vgg11_bn", small_images(), Random(), sparsity=0.9)
    result = transfer(arch, "vgg11_bn", small_images(), recipe=RECIPE, device="cpu")
    assert isinstance(result.model.avgpool, nn.AdaptiveAvgPool2d)
    assert type(result.model.classifier[0]) is nn.Linear
    assert list(result.model.state_dict()) == list(network().state_dict())
    assert all(p.grad is None and p.requires_grad for p in result.model.parameters())


@pytest.mark.usefixtures("narrow")
def test_a_training_that_diverges_leaves_the_network_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Training, "run", explode)
    model = network()
    with pytest.raises(ZeroDivisionError):
        fit_masked(model, {}, small_images(), RECIPE, seed=0)
    assert type(model.classifier[0]) is nn.Linear
    assert isinstance(model.avgpool, nn.AdaptiveAvgPool2d)


@pytest.mark.usefixtures("narrow")
def test_copies_are_merged_only_where_they_are_copies() -> None:
    model, adam = network(), RECIPE.but(optimiser="adam")
    assert copies_of_inputs(model, small_images(), RECIPE) == 49
    assert copies_of_inputs(model, small_images(64), RECIPE) == 1  # 2 × 2 places are left
    assert copies_of_inputs(model, small_images(), adam) == 1  # not linear in the gradient
    assert copies_of_inputs(nn.Linear(2, 2), small_images(), RECIPE) == 1
    model.classifier[0].weight.requires_grad_(False)
    assert copies_of_inputs(model, small_images(), RECIPE) == 1


def test_one_step_by_hand() -> None:
    # One unit, one input in two copies with weights 1 and 3; the input is 2, the gradient of the
    # output 1. Each copy moves by −0.1·2, after decaying by the factor 1 − 0.1·0.5.
    linear = nn.Linear(2, 1)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 3.0]]))
    merged = MergedLinear(linear, copies=2)
    merged.load(linear, None)
    optimiser = torch.optim.SGD([merged.value], lr=0.1, weight_decay=0.5)
    output = merged(torch.tensor([[2.0]]))
    assert output.item() == pytest.approx(8.0 + linear.bias.item())
    output.sum().backward()
    assert merged.value.grad is not None
    assert merged.value.grad.norm().item() == pytest.approx(2 * 2**0.5)  # of the gradient (2, 2)
    optimiser.step()
    one_step = Recipe(steps=1, lr=0.1, weight_decay=0.5, momentum=0.0, schedule="constant")
    merged.write_back(linear, decay_of_start(one_step))
    assert linear.weight.flatten().tolist() == pytest.approx([0.95 - 0.2, 2.85 - 0.2])
