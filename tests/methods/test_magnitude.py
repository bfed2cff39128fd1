"""Magnitude pruning: a small case by hand, and the weights that training leaves."""

from typing import Any, Literal

import pytest
import torch
from torch import nn

import aprune.methods.magnitude
from aprune import Recipe, find, load_task, search
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.methods import Magnitude
from aprune.parents import build_parent
from aprune.training import Curve
from helpers import other_world

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=15, lr=0.05, batch=20)

Spread = Literal["global", "layer"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    # "training" puts these numbers into the eight weights
    trained = ([1.0, -8.0, 3.0, -4.0], [7.0, 2.0, -6.0, 5.0])

    def fit_masked(model: nn.Sequential, *_: Any, **__: Any) -> Curve:
        for layer, values in zip(model[1:], trained, strict=True):
            layer.weight.data.view(-1).copy_(torch.tensor(values))
        return Curve((1.0,))

    monkeypatch.setattr(aprune.methods.magnitude, "fit_masked", fit_masked)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False))


@pytest.mark.parametrize(
    ("spread", "sparsity", "first", "second"),
    [
        # 8, 7, 6 and 5 of all
        ("global", 0.5, [False, True, False, False], [True, False, True, True]),
        # 8 and 4 of the one, 7 and 6 of the other
        ("layer", 0.5, [False, True, False, True], [True, False, True, False]),
        ("global", 0.75, [False, True, False, False], [True, False, False, False]),
        ("layer", 0.75, [False, True, False, False], [True, False, False, False]),
        # an odd number: the first layer gets the one that is left over
        ("layer", 0.625, [False, True, False, True], [True, False, False, False]),
    ],
)
def test_a_small_case_by_hand(
    small: nn.Module, spread: Spread, sparsity: float, first: list[bool], second: list[bool]
) -> None:
    task = other_world(channels=1, size=2, classes=4)
    arch = find(small, task, Magnitude(spread), sparsity=sparsity, recipe=QUICK, device="cpu")
    assert arch.mask("1.weight").flatten().tolist() == first
    assert arch.mask("2.weight").flatten().tolist() == second


def test_the_largest_trained_weights_of_all_layers_together_are_kept() -> None:
    found = search(
        "mlp", TASK, Magnitude(), sparsities=[0.0, 0.9], recipe=QUICK, weights=True, device="cpu"
    )
    whole, arch = found.networks[0].model, found.architectures[1]
    sizes = {name: whole.get_parameter(name).detach().abs() for name in arch.names}
    left = torch.cat([sizes[name][arch.mask(name)] for name in arch.names])
    gone = torch.cat([sizes[name][~arch.mask(name)] for name in arch.names])
    assert left.min() >= gone.max()
    assert len({layer.density for layer in arch.layers()}) == 3
    # these weights have been trained, in every layer
    start = build_parent("mlp", TASK)
    initialise(start, scheme="he", seed=0)
    for name, size in sizes.items():
        assert not torch.allclose(size, start.get_parameter(name).abs(), rtol=0.01, atol=1e-4)


def test_the_same_fraction_of_every_layer_is_kept() -> None:
    found = search(
        "conv",
        TASK,
        Magnitude("layer"),
        sparsities=[0.0, 0.5, 0.9, 0.99],
        recipe=QUICK,
        weights=True,
        device="cpu",
    )
    whole = found.networks[0].model
    for arch, sparsity in zip(found.architectures[1:], (0.5, 0.9, 0.99), strict=True):
        for layer in arch.layers():
            assert abs(layer.kept - layer.total * (1 - sparsity)) < 1.01
        for name, mask in arch.masks().items():
            size = whole.get_parameter(name).detach().abs()
            assert size[mask].min() >= size[~mask].max()


def test_the_largest_initial_weights_cost_nothing() -> None:
    method = Magnitude(when="start")
    found = search("mlp", TASK, method, sparsities=[0.9], seed=4, recipe=QUICK, device="cpu")
    arch = found.architectures[0]
    start = build_parent("mlp", TASK)
    initialise(start, scheme="he", seed=4)
    sizes = torch.cat([start.get_parameter(name).abs().flatten() for name in arch.names])
    kept = torch.cat([mask.flatten() for mask in arch.masks().values()])
    assert torch.equal(kept, sizes >= sizes.topk(arch.kept).values[-1])
    assert (found.steps, found.curves) == (0, ())
    assert arch.provenance["recipe"] is None


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="when is 'never': expected trained or start"):
        Magnitude(when="never")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="spread is 'unit': expected global or layer"):
        Magnitude("unit")  # type: ignore[arg-type]
