"""Which tensors are connections, and masks that stay on them."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from aprune.connections import (
    attach_masks,
    find_connections,
    fold,
    has_norm,
    shapes_of,
    weights_of,
)
from aprune.errors import SettingError


class Raw(nn.Module):
    """A layer of somebody's own, with its weight as a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 5))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(x, self.kernel)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 2), ["weight"]),
        (nn.Conv1d(4, 2, 3), ["weight"]),
        (nn.Conv2d(4, 4, 3, groups=2), ["weight"]),
        (nn.Conv3d(1, 2, 3), ["weight"]),
        (nn.ConvTranspose2d(4, 2, 3), ["weight"]),
        (nn.Bilinear(2, 3, 4), ["weight"]),
        (nn.LSTM(3, 2), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.MultiheadAttention(4, 2), ["in_proj_weight", "out_proj.weight"]),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ["in_proj_weight", "out_proj.weight"]),
        (Raw(), ["kernel"]),
    ],
)
def test_what_multiplies_an_input_is_a_connection(module: nn.Module, expected: list[str]) -> None:
    assert list(find_connections(module)) == expected
    assert list(weights_of(module)) == expected


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm2d(4),
        nn.LayerNorm((3, 4)),
        nn.RMSNorm((3, 4)),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.Embedding(5, 3),
        nn.EmbeddingBag(5, 3),
        nn.PReLU(4),
        nn.ReLU(),
    ],
)
def test_what_does_not_is_none(module: nn.Module) -> None:
    with pytest.raises(SettingError, match="no connections"):
        find_connections(module)
    # beside a layer that has one, it is passed over
    assert list(find_connections(nn.Sequential(module, nn.Linear(2, 2)))) == ["1.weight"]


def test_the_order_is_that_of_the_modules_and_the_tensors_are_the_network_s_own() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    found = find_connections(net)
    assert list(found) == ["0.weight", "3.weight"]
    assert found["3.weight"] is net[3].weight
    assert shapes_of(found) == {"0.weight": (2, 1, 3, 3), "3.weight": (3, 2)}


def test_include_and_exclude() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Linear(3, 2))
    assert list(find_connections(net, include="2.*")) == ["2.weight", "2.bias"]
    assert list(find_connections(net, include=["1.weight", "3.w*"])) == ["1.weight", "3.weight"]
    assert list(find_connections(net, exclude=["0.*", "3.*"])) == ["2.weight"]
    assert list(find_connections(net, include="*", exclude="*bias")) == [
        "0.weight",
        "1.weight",
        "2.weight",
        "3.weight",
    ]
    with pytest.raises(SettingError, match="among those matching features"):
        find_connections(net, include="features.*")
    with pytest.raises(SettingError, match="no connections"):
        find_connections(net, exclude="*")


def test_a_name_stands_for_itself_whatever_its_letters() -> None:
    net = nn.ModuleDict({"a[0]": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    names = list(find_connections(net))
    assert list(find_connections(net, include=names)) == names == ["a[0].weight", "b.weight"]


@pytest.mark.parametrize("exclude", [None, "first.*", "second.*"])
def test_tied_weights_are_refused(exclude: str | None) -> None:
    with pytest.raises(SettingError, match=r"first\.weight and second\.weight share one tensor"):
        find_connections(Tied(), exclude=exclude)


def test_tied_weights_may_be_left_alone() -> None:
    assert list(find_connections(Tied(), exclude=["first.*", "second.*"])) == ["head.weight"]
    assert list(weights_of(Tied())) == ["first.weight", "head.weight"]


def test_a_module_used_twice_is_no_tie() -> None:
    layer = nn.Linear(3, 3)
    assert list(find_connections(nn.Sequential(layer, nn.ReLU(), layer))) == ["0.weight"]


def test_a_parametrised_layer_is_refused_by_its_own_name() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2))
    with pytest.raises(SettingError, match=r"^0\.weight has a parametrisation already: remove it"):
        find_connections(net)
    assert list(find_connections(net, exclude="0.weight")) == ["1.weight"]


def test_patterns_that_leave_nothing_are_told_from_a_network_that_has_nothing() -> None:
    net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(5)])
    with pytest.raises(SettingError, match=r"\* in exclude takes away 0\.weight, .*, …, and"):
        find_connections(net, exclude="*")
    with pytest.raises(SettingError, match=r"2\.\*, 1\.\* in exclude takes away 1\.bias, and"):
        find_connections(net, include="1.bias", exclude=["2.*", "1.*"])
    with pytest.raises(SettingError, match="the network has no connections: expected a parameter"):
        find_connections(nn.LayerNorm(3), exclude="*")


def test_has_norm() -> None:
    assert has_norm(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))
    assert not has_norm(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))


def layer_and_input(kind: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    torch.manual_seed(0)
    if kind == "attention":
        x = torch.randn(5, 2, 4)
        return nn.MultiheadAttention(4, 2), lambda layer: layer(x, x, x)[0]
    if kind == "lstm":
        x = torch.randn(5, 2, 4)
        return nn.LSTM(4, 4), lambda layer: layer(x)[0]
    x = torch.randn(2, 4, 6, 6)
    if kind == "transposed":
        return nn.ConvTranspose2d(4, 6, 3, groups=2), lambda layer: layer(x)
    return nn.Conv2d(4, 6, 3, groups=2).to(memory_format=torch.channels_last), lambda layer: layer(
        x
    )


@pytest.mark.parametrize("kind", ["convolution", "transposed", "attention", "lstm"])
def test_masks_act_train_and_fold(kind: str) -> None:
    layer, forward = layer_and_input(kind)
    before = {name: p.detach().clone() for name, p in find_connections(layer).items()}
    w = {name: torch.randn(t.shape).sign() for name, t in before.items()}  # σ(±1000) is 0 or 1
    plain = copy.deepcopy(layer)
    masks = attach_masks(layer, w, t_l=1000.0, t_s=1.0)
    forward(layer).square().sum().backward()
    assert all(float(mask.w.grad.abs().sum()) > 0 for mask in masks.values())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in w:
                parameter.mul_(w[name] > 0)
    expected = forward(plain)
    assert torch.allclose(forward(layer), expected, atol=1e-6)
    places = {p.data_ptr() for p in layer.parameters()}
    fold(layer, w)
    assert {p.data_ptr() for p in layer.parameters()} == places
    assert torch.allclose(forward(layer), expected, atol=1e-6)
    assert list(layer.state_dict()) == list(plain.state_dict())
    for name, parameter in find_connections(layer).items():
        assert torch.equal(parameter, torch.where(w[name] > 0, before[name], 0.0))


@pytest.mark.parametrize("kind", ["convolution", "transposed", "attention", "lstm"])
def test_a_copy_outlives_the_masks_of_the_original(kind: str) -> None:
    layer, forward = layer_and_input(kind)
    w = {name: torch.randn(t.shape).sign() for name, t in find_connections(layer).items()}
    attach_masks(layer, w, t_l=1000.0, t_s=1.0)
    twin = copy.deepcopy(layer)
    expected = forward(layer)
    fold(layer, w)
    assert type(layer) is type(layer_and_input(kind)[0])
    assert torch.equal(forward(twin), expected)
    fold(twin, w)
    assert type(twin) is type(layer)
    assert torch.equal(forward(twin), expected)


def test_w_is_no_parameter_but_part_of_the_state() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    weight = net[0].weight
    w = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    attach_masks(net, {"0.weight": w}, t_l=100.0, t_s=10.0)
    assert [id(p) for p in net.parameters() if p.dim() == 2] == [id(weight)]
    state = net.state_dict()
    assert torch.equal(state["0.parametrizations.weight.0.w"], w)
    other = nn.Sequential(nn.Linear(3, 2))
    attach_masks(other, {"0.weight": torch.zeros(2, 3)}, t_l=100.0, t_s=10.0)
    other.load_state_dict(state)
    x = torch.randn(4, 3)
    assert torch.equal(other(x), net(x))


def test_w_stays_the_same_tensor_when_the_network_is_converted() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    mask = attach_masks(net, {"0.weight": torch.ones(2, 3)}, t_l=100.0, t_s=10.0)["0.weight"]
    w = mask.w
    net.double()
    assert mask.w is w
    assert w.is_leaf
    assert w.dtype == torch.float64
    net(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert w.grad is not None


def test_attaching_twice_is_refused() -> None:
    layer = nn.Linear(3, 2)
    attach_masks(layer, {"weight": torch.ones(2, 3)}, t_l=100.0, t_s=10.0)
    with pytest.raises(SettingError, match="weight has a parametrisation already"):
        attach_masks(layer, {"weight": torch.ones(2, 3)}, t_l=100.0, t_s=10.0)
