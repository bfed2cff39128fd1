"""Fresh weights: how wide, where zero, and drawn from nobody else's random numbers."""

import math

import pytest
import torch
from torch import Tensor, nn

from aprune import build_parent, load_task
from aprune.connections import attach_masks
from aprune.errors import SettingError
from aprune.initialise import RandomNumbers, Scheme, choose_schemes, initialise


def sparse(*shape: int, density: float, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def std(weight: Tensor, mask: Tensor) -> float:
    return weight[mask].square().mean().sqrt().item()


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("normal", 0.03),
        ("he", math.sqrt(2 / 400)),
        ("quiet", 0.3 / math.sqrt(0.1) * math.sqrt(2 / 400)),
        ("he_density", math.sqrt(2 / (400 * 0.1))),
        ("he_fan_in", math.sqrt(2 / (400 * 0.1))),
    ],
)
@pytest.mark.parametrize("convolution", [False, True])
def test_the_width_of_each_scheme(scheme: Scheme, expected: float, convolution: bool) -> None:
    layer = nn.Conv2d(16, 300, 5) if convolution else nn.Linear(400, 300)
    # exactly a tenth of each unit's inputs, at random places
    order = torch.rand(300, 400, generator=torch.Generator().manual_seed(0)).argsort(1)
    mask = (order < 40).reshape(layer.weight.shape)
    initialise(layer, {"weight": mask}, scheme, seed=0, epsilon=0.03)
    assert std(layer.weight, mask) == pytest.approx(expected, rel=0.03)
    assert layer.weight[mask].mean().item() == pytest.approx(0, abs=0.05 * expected)
    assert torch.equal(layer.weight != 0, mask)
    assert not layer.bias.any()


def test_fan_in_is_counted_unit_by_unit() -> None:
    layer = nn.Linear(1000, 4)
    mask = torch.arange(1000) < torch.tensor([1000, 500, 100, 0])[:, None]
    initialise(layer, {"weight": mask}, "he_fan_in", seed=0)
    for unit, inputs in enumerate((1000, 500, 100)):
        wide = std(layer.weight[unit], mask[unit])
        assert wide == pytest.approx(math.sqrt(2 / inputs), rel=0.2)
    assert not layer.weight[3].any()
    assert bool(layer.weight.isfinite().all())


def test_density_is_that_of_the_layer() -> None:
    layer = nn.Linear(1000, 4)
    mask = torch.arange(1000) < torch.tensor([1000, 500, 100, 0])[:, None]
    initialise(layer, {"weight": mask}, "he_density", seed=0)
    for unit in range(3):
        assert std(layer.weight[unit], mask[unit]) == pytest.approx(math.sqrt(2 / 400), rel=0.2)


@pytest.mark.parametrize(
    ("density", "expected"), [(1.0, 0.3), (0.5, 0.3), (0.09, 0.3), (0.01, 0.1)]
)
def test_quiet_units_get_no_more_than_a_part_of_what_dense_ones_get(
    density: float, expected: float
) -> None:
    layer, mask = nn.Linear(2000, 300), sparse(300, 2000, density=density)
    initialise(layer, {"weight": mask}, "quiet", seed=0)
    together = layer.weight.square().sum(1).mean().sqrt().item()
    assert together == pytest.approx(expected * math.sqrt(2), rel=0.05)
    if density == 1.0:
        masked = layer.weight.clone()
        initialise(layer, None, "quiet", seed=0)
        assert torch.equal(layer.weight, masked)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_has_its_units_in_the_second_dimension(groups: int) -> None:
    layer = nn.ConvTranspose2d(80, 4, 5, groups=groups)  # 80 × 4/groups × 5 × 5
    inputs = 80 // groups * 25
    initialise(layer, None, "he", seed=0)
    everything = torch.ones_like(layer.weight, dtype=torch.bool)
    assert std(layer.weight, everything) == pytest.approx(math.sqrt(2 / inputs), rel=0.05)
    mask = everything.clone()
    mask[80 // groups // 5 : 80 // groups, 0] = False  # of the first unit a fifth is left
    initialise(layer, {"weight": mask}, "he_fan_in", seed=0)
    first, last = layer.weight[: 80 // groups, 0], layer.weight[-80 // groups :, -1]
    assert std(first, mask[: 80 // groups, 0]) == pytest.approx(
        math.sqrt(2 / (inputs / 5)), rel=0.15
    )
    assert last.square().mean().sqrt().item() == pytest.approx(math.sqrt(2 / inputs), rel=0.15)


def test_an_empty_mask_leaves_finite_zeros() -> None:
    for scheme in ("normal", "he", "quiet", "he_density", "he_fan_in", "auto"):
        layer = nn.Linear(5, 3)
        initialise(layer, {"weight": torch.zeros(3, 5, dtype=torch.bool)}, scheme, seed=0)
        assert not layer.weight.any()


def test_everything_is_fresh_whether_masked_or_not() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)
    )
    net(torch.randn(9, 1, 4, 4))  # moves the running statistics
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(7.0)
    initialise(net, {"3.weight": sparse(8, 16, density=0.5)}, seed=0)
    norm = net[1]
    assert not norm.running_mean.any()
    assert norm.running_var.tolist() == norm.weight.tolist() == [1.0] * 4
    assert int(norm.num_batches_tracked) == 0
    for layer in (net[0], net[3], net[4]):
        assert not layer.bias.any()
        assert not bool((layer.weight == 7).any())
    assert bool((net[0].weight != 0).all())


def test_biases_and_norms_among_the_masks_start_as_without() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    masks = {name: sparse(*p.shape, density=0.5) for name, p in net.named_parameters()}
    initialise(net, masks, "he_fan_in", seed=0)
    assert torch.equal(net[1].weight, masks["1.weight"].float())
    assert not net[0].bias.any()


def test_attention_is_fresh_throughout() -> None:
    layer = nn.MultiheadAttention(16, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7.0)
    initialise(layer, None, "he", seed=0)
    assert not layer.in_proj_bias.any()
    assert not layer.out_proj.bias.any()
    assert layer.in_proj_weight.std().item() == pytest.approx(math.sqrt(2 / 16), rel=0.1)


@pytest.mark.parametrize(
    ("parent", "loud", "quiet"),
    [
        ("conv_bn", "features.0.weight", "classifier.weight"),
        ("vgg11_bn", "features.25.weight", "classifier.0.weight"),
        ("resnet20", "layer3.2.conv2.weight", "fc.weight"),
    ],
)
def test_auto_is_quiet_behind_the_last_norm(parent: str, loud: str, quiet: str) -> None:
    task = load_task("digits", size=32)
    with torch.device("meta"):
        schemes = choose_schemes(build_parent(parent, task))
    assert schemes[loud] == "he"
    assert schemes[quiet] == "quiet"
    behind = list(schemes).index(quiet)
    assert set(list(schemes.values())[:behind]) == {"he"}
    assert set(list(schemes.values())[behind:]) == {"quiet"}


def test_auto_fits_every_unit_where_nothing_normalises() -> None:
    assert set(choose_schemes(build_parent("conv", load_task("digits"))).values()) == {"he_fan_in"}


def test_auto_draws_what_its_rule_says() -> None:
    task = load_task("digits")
    mask = {"classifier.weight": sparse(10, 256, density=0.5)}
    for parent, scheme in (("conv", "he_fan_in"), ("conv_bn", "quiet")):
        net = build_parent(parent, task)
        initialise(net, mask, seed=3)
        drawn = net.classifier.weight.clone()
        initialise(net, mask, scheme, seed=3)
        assert torch.equal(net.classifier.weight, drawn)


def test_a_seed_is_a_draw_and_the_global_numbers_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reseeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    net = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    states = []
    before = torch.get_rng_state()
    for seed in (0, 0, 1):
        initialise(net, seed=seed)
        states.append({name: value.clone() for name, value in net.state_dict().items()})
    assert torch.equal(torch.get_rng_state(), before)
    assert reseeded == []  # other processes' GPUs neither
    for name in ("0.weight", "1.weight"):
        assert torch.equal(states[0][name], states[1][name])
        assert not torch.equal(states[0][name], states[2][name])


def test_global_numbers_are_given_back_after_an_error() -> None:
    before = torch.get_rng_state()
    numbers = RandomNumbers(torch.device("cpu"), 0)
    with pytest.raises(ZeroDivisionError), numbers.resumed():
        torch.rand(3)[0] / (1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_go_on_where_they_were_left() -> None:
    numbers, parts = RandomNumbers(torch.device("cpu"), 3), []
    for _ in range(2):
        with numbers.resumed():
            parts.append(torch.rand(2))
        torch.rand(5)
    generator = torch.Generator().manual_seed(3)
    whole = torch.cat([torch.rand(2, generator=generator) for _ in range(2)])
    assert torch.equal(torch.cat(parts), whole)
    numbers.seed(3)
    with numbers.resumed():
        assert torch.equal(torch.rand(2), parts[0])


def test_a_mask_falls_on_the_right_weights_in_every_memory_format() -> None:
    one = nn.Conv2d(3, 8, 3)
    other = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    mask = {"weight": sparse(8, 3, 3, 3, density=0.3)}
    for net in (one, other):
        initialise(net, mask, "he_fan_in", seed=0)
    assert torch.equal(one.weight != 0, mask["weight"])
    assert torch.equal(other.weight != 0, mask["weight"])


def test_bad_input_is_refused() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(SettingError, match="unknown initialisation 'xavier': expected one of auto"):
        initialise(layer, scheme="xavier", seed=0)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"'head' has shape \(2, 3\), .* no such parameter"):
        initialise(layer, {"head": torch.ones(2, 3, dtype=torch.bool)}, seed=0)
    with pytest.raises(SettingError, match=r"shape \(1, 3\), .* of shape \(2, 3\)"):
        initialise(layer, {"weight": torch.ones(1, 3, dtype=torch.bool)}, seed=0)


def test_attached_networks_have_no_bare_weight_to_draw() -> None:
    layer = nn.Linear(3, 2)
    attach_masks(layer, {"weight": torch.ones(2, 3)}, t_l=100.0, t_s=10.0)
    with pytest.raises(SettingError, match="no such parameter"):
        initialise(layer, {"weight": torch.ones(2, 3, dtype=torch.bool)}, seed=0)
