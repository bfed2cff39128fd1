"""Building by name: seeds, initial weights, errors, and carrying a parent to another task."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from aprune.errors import ParentError
from aprune.parents import build_parent, parent_for, parent_names

CIFAR = SimpleNamespace(shape=(3, 32, 32), num_classes=10)
DIGITS = SimpleNamespace(shape=(1, 8, 8), num_classes=10)
HALF = SimpleNamespace(shape=(1, 8, 8), num_classes=5)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_all_names_are_listed() -> None:
    assert set(parent_names()) == {
        "logistic", "mlp", "conv", "conv_bn",
        "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
        "cifar_vgg16", "resnet18", "resnet34", "resnet50", "resnet20", "resnet56",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["logistic", "mlp", "conv", "conv_bn", "resnet20"])
def test_the_seed_decides_the_weights(name: str) -> None:
    network = build_parent(name, DIGITS, seed=1)
    torch.manual_seed(77)
    assert same_weights(network, build_parent(name, DIGITS, seed=1))
    assert not same_weights(network, build_parent(name, DIGITS, seed=2))


@pytest.mark.parametrize("parent", ["resnet20", lambda task: build_parent("mlp", task)])
def test_global_random_numbers_are_left_alone(parent: object) -> None:
    before = torch.get_rng_state()
    network = parent_for(parent, DIGITS, seed=5)
    parent_for(network, HALF)
    assert torch.equal(torch.get_rng_state(), before)


def test_built_in_training_mode_on_the_cpu_with_its_name() -> None:
    network = build_parent("conv_bn", DIGITS)
    assert network.parent_name == copy.deepcopy(network).parent_name == "conv_bn"
    assert all(module.training for module in network.modules())
    assert {parameter.device.type for parameter in network.parameters()} == {"cpu"}
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert "parent_name" not in network.state_dict()


@pytest.mark.parametrize("name", parent_names())
def test_every_layer_with_a_state_is_one_that_gets_drawn(name: str) -> None:
    """Weights are drawn over empty memory: a layer of another kind would keep what lay there."""
    with torch.device("meta"):
        network = build_parent(name, CIFAR)
    for module in network.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        assert not own or isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d)


def test_initial_weights_of_vgg_are_torchvisions() -> None:
    network = build_parent("vgg11_bn", CIFAR)
    # Fan-out: 512 outputs of 9 taps each.
    assert network.features[25].weight.std().item() == pytest.approx((2 / 4608) ** 0.5, rel=0.01)
    assert network.features[0].weight.std().item() == pytest.approx((2 / 576) ** 0.5, rel=0.05)
    assert network.classifier[3].weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert network.features[1].weight.eq(1).all()
    assert network.features[1].running_mean.eq(0).all()
    assert network.features[1].running_var.eq(1).all()
    assert network.features[1].num_batches_tracked == 0
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all(), name


def test_initial_weights_of_the_others() -> None:
    mlp = build_parent("mlp", CIFAR)
    assert mlp.fc1.weight.std().item() == pytest.approx((2 / 3072) ** 0.5, rel=0.01)
    assert mlp.fc1.bias.eq(0).all()
    fc = build_parent("resnet20", CIFAR).fc
    assert fc.weight.abs().max().item() == pytest.approx(1 / 8, rel=0.05)
    assert fc.weight.abs().max().item() <= 1 / 8


@pytest.mark.parametrize(
    ("name", "meant"), [("vgg91", "'vgg19'"), ("ResNet20", "'resnet20'"), ("mpl", "'mlp'")]
)
def test_unknown_name_gets_the_closest_and_all(name: str, meant: str) -> None:
    with pytest.raises(ParentError) as caught:
        build_parent(name, DIGITS)
    message = str(caught.value)
    assert repr(name) in message
    assert f"did you mean {meant}" in message
    assert all(known in message for known in parent_names())


def test_unknown_name_far_from_all_suggests_none() -> None:
    with pytest.raises(ParentError, match=r"there is no parent 'zzzz'; choose one of logistic"):
        parent_for("zzzz", DIGITS)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("vgg19", (1, 8, 8), "got images of 8×8 pixels, expected at least 32×32"),
        ("vgg11_bn", (3, 32, 31), "got images of 32×31 pixels, expected at least 32×32"),
        ("conv", (1, 3, 4), "got images of 3×4 pixels, expected at least 4×4"),
    ],
)
def test_images_too_small(name: str, shape: tuple[int, int, int], expected: str) -> None:
    with pytest.raises(ParentError, match=expected):
        build_parent(name, SimpleNamespace(shape=shape, num_classes=10))


@pytest.mark.parametrize(("name", "smallest"), [("conv", 4), ("conv_bn", 4), ("vgg16", 32)])
def test_the_smallest_size_is_the_true_one(name: str, smallest: int) -> None:
    task = SimpleNamespace(shape=(1, smallest, smallest), num_classes=2)
    with torch.device("meta"):
        network = build_parent(name, task)
        assert network(torch.empty(2, *task.shape)).shape == (2, 2)
        with pytest.raises(RuntimeError, match="too small"):
            network(torch.empty(2, 1, smallest - 1, smallest - 1))


@pytest.mark.parametrize("name", ["mlp", "resnet20", "resnet18", "resnet50"])
def test_any_size_is_taken(name: str) -> None:
    with torch.device("meta"):
        network = build_parent(name, SimpleNamespace(shape=(1, 1, 1), num_classes=2))
        assert network(torch.empty(2, 1, 1, 1)).shape == (2, 2)


def test_parent_for_a_name_builds_it() -> None:
    assert same_weights(parent_for("mlp", HALF, seed=4), build_parent("mlp", HALF, seed=4))


def test_a_parent_that_fits_is_copied_with_its_weights() -> None:
    network = build_parent("conv_bn", DIGITS, seed=9)
    network.features[1].eval()
    copied = parent_for(network, SimpleNamespace(shape=(1, 16, 16), num_classes=10), seed=0)
    assert same_weights(copied, network)
    assert copied.features[0].weight is not network.features[0].weight
    assert [m.training for m in copied.modules()] == [m.training for m in network.modules()]
    assert not copied.features[1].training


def test_a_parent_that_does_not_fit_is_built_anew_and_itself_left_alone() -> None:
    network = build_parent("mlp", DIGITS, seed=9)
    before = copy.deepcopy(network)
    small = SimpleNamespace(shape=(3, 4, 4), num_classes=2)
    carried = parent_for(network, small, seed=6)
    assert same_weights(carried, build_parent("mlp", small, seed=6))
    assert carried.parent_name == "mlp"
    assert same_weights(network, before)
    assert network.training


def test_a_parent_rebuilt_for_images_too_small_says_so() -> None:
    with torch.device("meta"):
        network = build_parent("vgg11", CIFAR)
        with pytest.raises(ParentError, match="at least 32×32"):
            parent_for(network, DIGITS)


def test_a_parent_changed_by_hand_is_not_rebuilt_in_silence() -> None:
    network = build_parent("mlp", DIGITS)
    network.fc3 = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 10))
    assert same_weights(parent_for(network, DIGITS), network)
    with pytest.raises(ParentError, match="no longer has the layers of 'mlp'"):
        parent_for(network, HALF)
