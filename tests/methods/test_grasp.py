"""GraSP: its scores against a whole Hessian, what they say, and what they are taken over."""

import copy
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from aprune import Recipe, find, search
from aprune.connections import find_connections
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.methods import GraSP, Problem
from aprune.methods.protocol import Masks
from helpers import other_world

NOISE = other_world(channels=1, size=2, classes=3)  # 40 images, which training would mirror
ALL = Recipe(steps=1, lr=0.1, batch=40)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
SHAPES = {"1.weight": (5, 4), "3.weight": (3, 5)}


def scores_of(method: GraSP, model: nn.Module = MODEL, recipe: Recipe = ALL) -> Tensor:
    seen: list[Tensor] = []

    class Noting(Problem):
        def keep_best(self, scores: Mapping[str, Tensor]) -> dict[float, Masks]:
            seen.extend(score.flatten().double() for score in scores.values())
            return super().keep_best(scores)

    names = tuple(find_connections(model))
    method.search(Noting(copy.deepcopy(model), names, NOISE, (0.5,), recipe, seed=3))
    return torch.cat(seen)


def start() -> Tensor:
    # the weights as the method starts them, in one vector
    twin = copy.deepcopy(MODEL)
    initialise(twin, scheme="he", seed=3)
    return torch.cat([twin.get_parameter(name).detach().flatten() for name in SHAPES]).double()


def loss_at(theta: Tensor, temperature: float) -> Tensor:
    # over all images; biases are zero at the start
    parts = theta.split([20, 15])
    weights = {name: p.view(s) for (name, s), p in zip(SHAPES.items(), parts, strict=True)}
    biases = {"1.bias": theta.new_zeros(5), "3.bias": theta.new_zeros(3)}
    x = NOISE.train_images.double() / 255
    x = (x - x.mean()) / x.std(correction=0)
    outputs = functional_call(MODEL, weights | biases, x)
    return F.cross_entropy(outputs / temperature, NOISE.train_labels)


def slope_at(theta: Tensor, temperature: float) -> Tensor:
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(loss_at(theta, temperature), theta)[0]


def agree(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("temperature", [1.0, 7.0, 200.0])
def test_scores_are_weight_times_hessian_times_slope(temperature: float) -> None:
    theta = start()
    hessian = torch.autograd.functional.hessian(lambda at: loss_at(at, temperature), theta)
    expected = theta * (hessian @ slope_at(theta, temperature))
    assert agree(scores_of(GraSP(temperature=temperature)), expected)


def test_kept_is_what_the_gradient_would_lose_most_without() -> None:
    theta, step = start(), 1e-4

    def flow_without(place: int, part: float) -> Tensor:
        at = theta.clone()
        at[place] *= 1 - part
        return slope_at(at, 1.0).square().sum()

    change = torch.stack(
        [(flow_without(i, step) - flow_without(i, -step)) / (2 * step) for i in range(35)]
    )
    assert agree(-2 * scores_of(GraSP(temperature=1.0)), change)
    arch = find(
        MODEL, NOISE, GraSP(temperature=1.0), sparsity=0.8, seed=3, recipe=ALL, device="cpu"
    )
    kept = torch.cat([arch.mask(name).flatten() for name in SHAPES])
    assert torch.equal(kept, change <= change.sort().values[6])
    assert bool((change[kept] < 0).all())
    # the sign counts: others change it as much, the other way
    assert change[~kept].max() > -change[kept].max()


def test_a_network_that_divides_its_own_outputs_needs_no_temperature() -> None:
    class Divided(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 9

    own = scores_of(GraSP(temperature=1.0), nn.Sequential(*MODEL, Divided()))
    assert agree(scores_of(GraSP(temperature=9.0)), own)
    assert not agree(scores_of(GraSP(temperature=1.0)), own)


def test_slopes_and_bends_of_batches_add_up() -> None:
    whole = scores_of(GraSP())
    # two halves that make up the 40 images: both the slope and the Hessian are twice as large
    halves = scores_of(GraSP(batches=2), recipe=ALL.but(batch=20))
    assert agree(halves, 4 * whole)
    assert not agree(scores_of(GraSP(), recipe=ALL.but(batch=20)), whole)


def test_every_batch_takes_three_passes() -> None:
    method = GraSP(batches=2)
    assert search(MODEL, NOISE, method, sparsities=[0.5], recipe=ALL, device="cpu").steps == 6


def test_dropout_does_not_matter() -> None:
    dropped = nn.Sequential(*MODEL[:3], nn.Dropout(0.0), MODEL[3])
    found = scores_of(GraSP(), dropped)
    dropped[3].p = 0.9
    assert torch.equal(scores_of(GraSP(), dropped), found)


def test_norms_that_run_leave_fresh_networks_as_they_are() -> None:
    layers = [*MODEL[:2], nn.BatchNorm1d(5, eps=1e-9), *MODEL[2:]]
    model, bare = nn.Sequential(*layers), nn.Sequential(*layers[:2], nn.Identity(), *layers[3:])
    without = scores_of(GraSP(), bare)
    assert torch.allclose(scores_of(GraSP(norms="running"), model), without, rtol=1e-4, atol=1e-9)
    assert not torch.allclose(scores_of(GraSP(), model), without, rtol=0.1)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="norms is 1: expected batch or running"):
        GraSP(norms=1)  # type: ignore[arg-type]
    for batches in (0, 1.5, float("nan")):
        with pytest.raises(SettingError, match=f"batches is {batches}: expected a whole number"):
            GraSP(batches=batches)  # type: ignore[arg-type]
    for temperature in (0.0, -1.0, float("nan"), float("inf"), "a"):
        with pytest.raises(
            SettingError, match=f"temperature is {temperature!r}: expected a number"
        ):
            GraSP(temperature=temperature)  # type: ignore[arg-type]
