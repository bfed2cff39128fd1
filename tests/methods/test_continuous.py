"""Continuous sparsification: how its mask hardens, and what moves s."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import Recipe, find, load_task
from aprune.errors import SearchError, SettingError
from aprune.finding import search
from aprune.initialise import initialise
from aprune.methods import Continuous
from aprune.training import Curve, Hook, fit

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=5, lr=0.05, batch=20, clip=None)
BETAS = [1.0, 200**0.25, 200**0.5, 200**0.75, 200.0]


def small(_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.Linear(8, 3, bias=False))


def frozen(task: object) -> nn.Module:
    return small(task).requires_grad_(False)


class Watch(Hook):
    """Writes down β, s, the weights θ and those that the layers see, and the gradients of s and θ."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [model.get_submodule("1"), model.get_submodule("2")]
        self.soft = [layer.parametrizations.weight[0] for layer in self.layers]
        self.beta: list[list[float]] = []
        self.s: list[Tensor] = []
        self.theta: list[Tensor] = []
        self.seen: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.slopes: list[Tensor] = []

    def before(self, step: int) -> None:
        self.beta.append([soft.beta.item() for soft in self.soft])
        self.s.append(flat([soft.s for soft in self.soft]))
        self.theta.append(flat([m.parametrizations.weight.original for m in self.layers]))
        self.seen.append(flat([m.weight for m in self.layers]))

    def on_gradient(self) -> None:
        self.gradients.append(flat([soft.s.grad for soft in self.soft]))
        weights = [m.parametrizations.weight.original for m in self.layers]
        if all(weight.grad is not None for weight in weights):
            self.slopes.append(flat([weight.grad for weight in weights]))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """Watch every training, before each step and at the end."""
    watches: list[Watch] = []

    def watched(model: nn.Module, *args: Any, hooks: Sequence[Hook], **rest: Any) -> Curve:
        watches.append(Watch(model))
        curve = fit(model, *args, hooks=[*hooks, watches[-1]], **rest)
        watches[-1].before(len(curve.loss))
        return curve

    monkeypatch.setattr("aprune.methods.continuous.fit", watched)
    return watches


def test_beta_rises_exponentially_from_1_to_the_last_step(spy: list[Watch]) -> None:
    find(small, TASK, Continuous(), sparsity=0.5, recipe=QUICK, device="cpu")
    find(small, TASK, Continuous(beta=9.0), sparsity=0.5, recipe=QUICK.but(steps=3), device="cpu")
    for layer in (0, 1):
        assert [beta[layer] for beta in spy[0].beta] == pytest.approx([*BETAS, 200.0])
        assert [beta[layer] for beta in spy[1].beta] == pytest.approx([1.0, 3.0, 9.0, 9.0])


@pytest.mark.parametrize("start", [-0.7, 0.0, 1.5])
def test_weights_start_as_they_are_drawn(spy: list[Watch], start: float) -> None:
    find(small, TASK, Continuous(start=start), sparsity=0.5, recipe=QUICK, device="cpu")
    drawn = small(TASK)
    initialise(drawn, scheme="he", seed=0)
    assert torch.allclose(spy[0].seen[0], flat(list(drawn.parameters())), rtol=1e-6, atol=0)
    assert torch.all(spy[0].s[0] == start)


def test_layers_see_weights_times_a_mask_that_hardens(spy: list[Watch]) -> None:
    found = search(
        small,
        TASK,
        Continuous(start=0.02),
        sparsities=[0.6],
        recipe=QUICK.but(steps=30),
        weights=True,
        device="cpu",
    )
    (watch,) = spy
    middle = 1 / (1 + math.exp(-0.02))
    for beta, s, theta, seen in zip(watch.beta, watch.s, watch.theta, watch.seen, strict=True):
        expected = theta / middle / (1 + (-beta[0] * s).exp())
        assert torch.allclose(seen, expected, rtol=1e-4, atol=1e-7)
    kept = flat(list(found.architectures[0].masks().values()))
    assert torch.equal(flat(list(found.networks[0].model.parameters())), watch.seen[-1] * kept)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt"])
def test_s_moves_along_its_gradient_and_that_of_the_penalty(
    spy: list[Watch], schedule: str
) -> None:
    plain = QUICK.but(lr=1e-3, momentum=0.0, schedule=schedule, weight_decay=0.5)
    find(small, TASK, Continuous(start=0.01, penalty=3.0), sparsity=0.5, recipe=plain, device="cpu")
    (watch,) = spy
    for step, beta in enumerate(BETAS):
        soft = torch.sigmoid(beta * watch.s[step])
        slope = watch.gradients[step] + 3.0 * beta * soft * (1 - soft)
        moved = watch.s[step + 1] - watch.s[step]
        factor = 1.0 if schedule == "constant" else 1 / math.sqrt(step + 1)
        assert torch.allclose(moved, -1e-3 * factor * slope, rtol=1e-3, atol=1e-7)
        assert watch.gradients[step].count_nonzero() > 0


def test_the_gradient_of_s_is_that_of_the_present_step(spy: list[Watch]) -> None:
    find(small, TASK, Continuous(start=0.01), sparsity=0.5, recipe=QUICK, device="cpu")
    (watch,) = spy
    for step, beta in enumerate(BETAS):
        # both go through θ·σ(βs): ∂L/∂s = ∂L/∂θ · θ·σ′/σ
        by_theta = watch.theta[step] * beta * torch.sigmoid(-beta * watch.s[step])
        expected = watch.slopes[step] * by_theta
        assert torch.allclose(watch.gradients[step], expected, rtol=1e-3, atol=1e-4)


def test_s_has_the_momentum_of_the_recipe(spy: list[Watch]) -> None:
    recipe = QUICK.but(steps=2, lr=1e-3, momentum=0.5, schedule="constant")
    find(small, TASK, Continuous(penalty=0.0), sparsity=0.5, recipe=recipe, device="cpu")
    first, second = spy[0].gradients
    moved = spy[0].s[2] - spy[0].s[1]
    assert torch.allclose(moved, -1e-3 * (0.5 * first + second), rtol=1e-3, atol=1e-8)


def test_weight_decay_is_not_for_s(spy: list[Watch]) -> None:
    # the weights themselves are frozen: they would decay, and s would see that
    for decay in (0.0, 0.5):
        recipe = QUICK.but(steps=20, weight_decay=decay)
        find(frozen, TASK, Continuous(start=0.1), sparsity=0.5, recipe=recipe, device="cpu")
    without, with_decay = (watch.s[-1] for watch in spy)
    assert torch.allclose(without, with_decay, atol=1e-5)
    assert (without - 0.1).abs().max() > 0.01


def test_a_large_penalty_leaves_fewer_above_zero(spy: list[Watch]) -> None:
    for penalty in (0.0, 0.01, 1.0):
        method = Continuous(penalty=penalty)
        find(small, TASK, method, sparsity=0.5, recipe=QUICK.but(steps=20), device="cpu")
    none, some, most = (int((watch.s[-1] > 0).sum()) for watch in spy)
    assert none > some > most
    assert none > 100
    assert most < 10


def test_the_largest_s_of_all_layers_together_are_kept(spy: list[Watch]) -> None:
    found = find(small, TASK, Continuous(), sparsity=[0.3, 0.9], recipe=QUICK, device="cpu")
    assert len(spy) == 1  # one search for both
    s = spy[0].s[-1]
    for arch in found:
        mask = flat(list(arch.masks().values()))
        assert torch.equal(mask, s >= s.sort(descending=True).values[arch.kept - 1])
        assert len({layer.density for layer in arch.layers()}) == 2


def test_bad_settings_are_refused() -> None:
    for beta in (1.0, 0.5, -3.0, math.nan, math.inf):
        with pytest.raises(SettingError, match=f"beta is {beta}: expected a number above 1"):
            Continuous(beta=beta)
    for start in (-1000.0, 17.0, math.nan, math.inf, -math.inf):
        with pytest.raises(SettingError, match=f"start is {start}: expected a number from -80 to"):
            Continuous(start=start)
    for penalty in (-1e-9, math.nan, math.inf):
        with pytest.raises(SettingError, match=f"penalty is {penalty}: expected a number from 0"):
            Continuous(penalty=penalty)


@pytest.mark.parametrize("start", [-80.0, 16.0])
def test_the_outermost_starts_have_a_mask_and_a_slope(spy: list[Watch], start: float) -> None:
    plain = QUICK.but(steps=1, lr=1e-3, momentum=0.0, schedule="constant")
    find(
        small, TASK, Continuous(start=start, penalty=0.0), sparsity=0.5, recipe=plain, device="cpu"
    )
    assert bool(spy[0].seen[0].isfinite().all())
    assert spy[0].seen[0].count_nonzero() > 500
    assert spy[0].gradients[0].count_nonzero() > 100


def test_a_search_that_diverges_says_so() -> None:
    absurd = Recipe(steps=10, lr=1e30, clip=None)
    with pytest.raises(SearchError, match=r"the search died: the loss is .* at step \d+ of 10"):
        find(small, TASK, Continuous(), sparsity=0.5, recipe=absurd, device="cpu")
