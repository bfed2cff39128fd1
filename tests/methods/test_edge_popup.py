"""Edge-popup: weights that are never trained, scores that learn straight through the top-k."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import Recipe, build_parent, find, load_task
from aprune.connections import parametrise
from aprune.finding import search
from aprune.initialise import initialise
from aprune.methods import EdgePopup
from aprune.methods.edge_popup import Popup
from aprune.training import Curve, Hook, fit

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=12, lr=0.5, batch=20)


def small(_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 15), nn.ReLU(), nn.Linear(15, 3))


def largest(scores: Tensor, kept: int) -> list[bool]:
    """Sort, and take the first."""
    sizes = [abs(score) for score in scores.flatten().tolist()]
    best = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:kept]
    return [place in best for place in range(len(sizes))]


class Watch(Hook):
    """Writes down the scores, and which weights the layers see, before every step."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [model.get_submodule("1"), model.get_submodule("3")]
        self.scores: list[list[Tensor]] = []
        self.seen: list[list[Tensor]] = []

    def before(self, step: int) -> None:
        self.scores.append([m.parametrizations.weight[0].scores.clone() for m in self.layers])
        self.seen.append([m.weight.detach() != 0 for m in self.layers])


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    watches: list[Watch] = []

    def watched(model: nn.Module, *args: Any, **rest: Any) -> Curve:
        watches.append(Watch(model))
        curve = fit(model, *args, hooks=[watches[-1]], **rest)
        watches[-1].before(len(curve.loss))
        return curve

    monkeypatch.setattr("aprune.methods.edge_popup.fit", watched)
    return watches


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_weights_stay_as_drawn_all_of_one_size_that_makes_up_for_density(parent: str) -> None:
    found = search(
        parent,
        TASK,
        EdgePopup(),
        sparsities=[0.5, 0.9],
        seed=5,
        recipe=QUICK,
        weights=True,
        device="cpu",
    )
    drawn = build_parent(parent, TASK)
    initialise(drawn, scheme="he", seed=5)
    for arch, network in zip(found.architectures, found.networks, strict=True):
        trained = dict(network.model.named_parameters())
        for layer, (name, mask) in zip(arch.layers(), arch.masks().items(), strict=True):
            weight = trained[name][mask]
            sizes = weight.abs()
            he = math.sqrt(2 / (trained[name][0].numel() * layer.density))
            # the root mean square of N draws is off by one part in √(2N)
            assert sizes[0].item() == pytest.approx(he, rel=4 / math.sqrt(2 * mask.numel()))
            assert torch.all(sizes == sizes[0])
            assert torch.equal(weight.sign(), drawn.get_parameter(name)[mask].sign())
        for name in trained.keys() - set(arch.names):  # biases and norms
            assert torch.equal(trained[name], drawn.get_parameter(name)), name


def test_the_gradient_goes_straight_through_the_top_k() -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor([[2.0, -3.0], [5.0, -7.0]])
    popup = Popup(torch.tensor([[0.4, -0.1], [0.2, -0.3]]), 2)
    parametrise(layer, "weight", popup)
    out = layer(torch.tensor([1.0, 10.0]))
    assert out.tolist() == [2.0, -70.0]  # only 2 and −7 are on
    (out * torch.tensor([1.0, 100.0])).sum().backward()
    # dL/d(masked weight) is [[1, 10], [100, 1000]], times the weight, times the sign of the score
    assert popup.scores.grad is not None
    assert popup.scores.grad.tolist() == [[2.0, 30.0], [500.0, 7000.0]]


@pytest.mark.parametrize("kept", [0, 1, 5, 11, 12])
def test_a_layer_sees_the_weights_with_the_largest_scores(kept: int) -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    weight = torch.arange(1.0, 13.0).view(3, 4)
    expected = weight * torch.tensor(largest(scores, kept)).view(3, 4)
    assert torch.equal(Popup(scores, kept)(weight), expected)


def test_every_step_sees_the_top_of_its_own_scores_and_the_last_are_found(
    spy: list[Watch],
) -> None:
    arch = find(small, TASK, EdgePopup(), sparsity=0.9, recipe=QUICK, device="cpu")
    (watch,) = spy
    assert len(watch.seen) == QUICK.steps + 1
    counts = [layer.kept for layer in arch.layers()]
    for scores, seen in zip(watch.scores, watch.seen, strict=True):
        for one, on, kept in zip(scores, seen, counts, strict=True):
            assert on.flatten().tolist() == largest(one, kept)
    for name, on in zip(arch.names, watch.seen[-1], strict=True):
        assert torch.equal(arch.mask(name), on)
    assert not torch.equal(watch.seen[-1][0], watch.seen[0][0])  # learning changed them
    for layer, start in zip(watch.layers, watch.scores[0], strict=True):
        bound = 1 / math.sqrt(layer.in_features)
        assert 0.9 * bound < start.abs().max().item() <= bound


def test_every_layer_and_every_seed_has_scores_of_its_own(spy: list[Watch]) -> None:
    alike = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    alike.append(nn.Linear(64, 3))
    for seed in (0, 1):
        find(alike, TASK, EdgePopup(), sparsity=0.5, seed=seed, recipe=QUICK, device="cpu")
    drawn = [scores for watch in spy for scores in watch.scores[0]]
    assert len(drawn) == 4
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))


@pytest.mark.parametrize("sparsity", [0.3, 0.77, 0.987])
def test_every_layer_has_the_same_density_to_the_connection(sparsity: float) -> None:
    arch = find("mlp", TASK, EdgePopup(), sparsity=sparsity, recipe=QUICK, device="cpu")
    for layer in arch.layers():
        assert abs(layer.kept - arch.kept / arch.total * layer.total) < 1


def test_each_sparsity_is_searched_for_from_the_start() -> None:
    both = find("conv_bn", TASK, EdgePopup(), sparsity=[0.5, 0.9], recipe=QUICK, device="cpu")
    alone = find("conv_bn", TASK, EdgePopup(), sparsity=0.9, recipe=QUICK, device="cpu")
    assert both[1] == alone
    assert both[1].overlap(both[0]).of_first < 1  # so they need not be nested


def test_digits_are_read_with_random_weights() -> None:
    found = search(
        "mlp",
        load_task("digits", seed=0),
        EdgePopup(),
        sparsities=[0.9],
        recipe=Recipe(steps=200, lr=0.5),
        device="cpu",
    )
    curve = found.curves[0]
    assert curve.loss[0] > 2
    assert curve.final() < 0.2
    assert found.accuracy is not None
    assert found.accuracy > 0.9
