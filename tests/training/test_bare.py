"""Bare weights: what layers see, where the gradient goes, and what is left in the end."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import aprune.parents.vgg
from aprune import Recipe, build_parent, load_task
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.parents.vgg import VGG
from aprune.training import KeepMasked
from aprune.training.bare import Signs, bare_names, signs_shown
from aprune.training.fit import Training
from aprune.training.masked import Lane, fit_masked
from helpers import other_world

QUICK = Recipe(steps=6, lr=0.1, batch=16)
TASK = load_task("digits", classes=[0, 1, 2], images=60)


def network(parent: str = "conv_bn") -> nn.Module:
    model = build_parent(parent, TASK)
    initialise(model, seed=0)
    return model


def masks_of(model: nn.Module, density: float = 0.4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(p.shape, generator=generator) < density
        for name, p in model.named_parameters()
        if p.dim() > 1
    }


def assert_same(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_forward_and_backward_by_hand() -> None:
    # |θ| is 3, 1 and 5 where it is not zero: s = 9/3. The loss is Σ c∘shown, so its gradient is c, and
    # would be another one if it knew that s follows θ.
    theta = torch.tensor([[3.0, 0.0], [-1.0, -5.0]], requires_grad=True)
    shown = Signs()(theta)
    assert shown.tolist() == [[3.0, 0.0], [-3.0, -3.0]]
    (shown * torch.tensor([[2.0, 7.0], [-4.0, 0.5]])).sum().backward()
    assert theta.grad is not None
    assert theta.grad.tolist() == [[2.0, 7.0], [-4.0, 0.5]]


def test_one_step_by_hand() -> None:
    # The gradient of the output is the input: θ moves by −0.1·(1, 10, 5), but for the connection that
    # is not there. The second changes its sign. s is (2 + 0.4)/2 before and (1.9 + 0.6)/2 after.
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 0.4, 8.0]]))
    keep = KeepMasked(layer, {"weight": torch.tensor([[True, True, False]])})
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    with signs_shown(layer, ["weight"]):
        output = layer(torch.tensor([1.0, 10.0, 5.0]))
        assert output.item() == pytest.approx(1.2 + 12.0)
        output.sum().backward()
        keep.on_gradient()
        optimiser.step()
        keep.on_update()
        assert layer.parametrizations.weight.original[0].tolist() == pytest.approx([1.9, -0.6, 0.0])
    assert layer.weight[0].tolist() == pytest.approx([1.25, -1.25, 0.0])


def test_a_tensor_without_connections_shows_nothing() -> None:
    theta = torch.zeros(2, 3, requires_grad=True)
    shown = Signs()(theta)
    assert shown.tolist() == theta.tolist()
    shown.sum().backward()
    assert theta.grad is not None
    assert theta.grad.tolist() == [[1.0] * 3] * 2


def test_weights_stay_the_same_parameters_in_the_same_place() -> None:
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Linear(5, 2))
    net = net.to(memory_format=torch.channels_last)
    before = [(id(p), p.data_ptr(), p.stride()) for p in net.parameters()]
    with signs_shown(net, ["0.weight", "2.weight"]):
        seen = net[0].weight.detach().clone()
        assert {id(p) for p in net.parameters()} == {number for number, *_ in before}
    assert [(id(p), p.data_ptr(), p.stride()) for p in net.parameters()] == before
    assert torch.equal(net[0].weight, seen)
    assert len(seen.abs().unique()) == 1
    assert not any(parametrize.is_parametrized(module) for module in net.modules())
    assert (type(net[0]), type(net[2])) == (nn.Conv2d, nn.Linear)
    assert all(p.is_leaf and p.requires_grad for p in net.parameters())


def test_which_tensors_are_bare() -> None:
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    ones = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    assert bare_names(net, {}) == ["1.weight", "3.weight"]
    assert bare_names(net, ones) == ["1.weight", "3.weight"]
    assert bare_names(net, {"3.weight": ones["3.weight"]}) == ["3.weight"]
    with pytest.raises(SettingError, match=r"holds 2\.weight, 3\.bias, none of which multiplies"):
        bare_names(net, {name: ones[name] for name in ("2.weight", "3.bias")})


def test_weights_that_cannot_be_shown_are_refused_and_the_others_left_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with pytest.raises(SettingError, match=r"1\.weight.* has a parametrisation already"):
        fit_masked(net, {}, TASK, QUICK, seed=0, bare=True)
    with (
        pytest.raises(SettingError, match=r"1\.weight has a parametrisation already"),
        signs_shown(net, ["0.weight", "1.weight"]),
    ):
        pytest.fail("too late")
    assert type(net[0]) is nn.Linear
    net[1] = nn.Linear(3, 3)
    net[1].weight = net[0].weight
    with pytest.raises(SettingError, match="share one tensor"):
        fit_masked(net, {}, TASK, QUICK, seed=0, bare=True)


@pytest.mark.parametrize("density", [0.4, None])
@pytest.mark.parametrize("engine", ["auto", "eager", "fused"])
def test_it_is_a_training_with_signs_in_place_of_weights(
    density: float | None, engine: Any
) -> None:
    one, other = network(), network()
    masks = masks_of(one, density) if density else {}
    curve = fit_masked(one, masks, TASK, QUICK, seed=3, bare=True, engine=engine)
    training = Training(other, TASK, QUICK, hooks=[KeepMasked(other, masks)])
    with signs_shown(other, [n for n, p in other.named_parameters() if p.dim() > 1]):
        training.start(TASK, QUICK, seed=3)
        expected = training.run("test")
    assert curve == expected
    assert_same(one, other)


@pytest.mark.parametrize("bare", [True, False])
def test_nothing_is_merged(monkeypatch: pytest.MonkeyPatch, bare: bool) -> None:
    monkeypatch.setattr(aprune.parents.vgg, "_WIDTHS", (4, 4, 8, 8, 8))
    monkeypatch.setattr(aprune.parents.vgg, "_HIDDEN", 16)
    model = VGG((1, 32, 32), 3, depth=11, batch_norm=True)
    initialise(model, seed=0)
    task = other_world(channels=1, size=32, classes=3)
    lane = Lane(model, bare=bare)
    with lane.run({}, task, QUICK.but(steps=1), seed=0) as training:
        assert isinstance(model.classifier[0], nn.Linear) is bare
        training.run("test")
    magnitudes = model.classifier[0].weight.abs().unique()
    assert (len(magnitudes) == 1) is bare


def test_a_training_that_breaks_leaves_an_ordinary_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Training, "run", explode)
    model = network()
    with pytest.raises(ZeroDivisionError):
        fit_masked(model, masks_of(model), TASK, QUICK, seed=0, bare=True)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
