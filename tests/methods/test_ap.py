"""Architecture pruning: its step by hand, the letter of the paper, and searches that go wrong."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from aprune import AP, Recipe, attach, build_parent, find, load_task
from aprune.errors import SearchError, SettingError
from aprune.finding import search as search_for
from aprune.maths.select import keep_count
from helpers import plain_descent, w_of

TASK = load_task("digits", classes=[0, 1, 2], images=150, seed=0)
QUICK = Recipe(steps=30, lr=0.03, batch=32)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt"])
def test_a_step_of_w_worked_by_hand(schedule: str) -> None:
    layer = nn.Linear(3, 1, bias=False)
    theta = torch.tensor([[1.0, -2.0, 0.5]])
    with torch.no_grad():
        layer.weight.copy_(theta)
    search = attach(layer, plain_descent(0.6, 9, t_s=2.0, gamma=0.25, w_schedule=schedule))
    w = w_of(layer)
    assert bool((w > 0).all())
    x = torch.tensor([[3.0, 1.0, -1.0]])
    for step in range(2):
        layer(x).sum().backward()
        search.step()
        warm = torch.sigmoid(2 * w)
        gradient = (x * theta).flatten() * 2 * warm * (1 - warm)
        size = 0.1 / (math.sqrt(step + 1) if schedule == "inverse_sqrt" else 1)
        w = w - size * (gradient + 2 * 0.25 * (1 + w))
        assert torch.allclose(w_of(layer), w, atol=1e-6)


def test_the_penalty_alone_drives_w_towards_minus_one() -> None:
    layer = nn.Linear(40, 10)
    search = attach(layer, plain_descent(0.99, 400))
    before = w_of(layer)
    search.step()  # no gradient at all: w ← w − 0.1·(1 + w)
    assert torch.allclose(w_of(layer), before - 0.1 * (1 + before), atol=1e-6)
    while search.phase != "frozen":
        closest = (w_of(layer) + 1).abs().max()
        search.step()
        assert search.phase == "frozen" or (w_of(layer) + 1).abs().max() < closest
    assert search.architecture().kept == 4


def test_w_starts_on_the_positive_side_with_the_width_asked_for() -> None:
    layer = nn.Linear(200, 200)
    attach(layer, AP(sparsity=0.5, steps=10, w_scale=0.2), seed=3)
    w = w_of(layer)
    assert bool((w >= 0).all())
    assert w.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.02)
    again, other = nn.Linear(200, 200), nn.Linear(200, 200)
    attach(again, AP(sparsity=0.5, steps=10, w_scale=0.2), seed=3)
    attach(other, AP(sparsity=0.5, steps=10, w_scale=0.2), seed=4)
    assert torch.equal(w_of(again), w)
    assert not torch.equal(w_of(other), w)


def test_w_can_start_in_one_place() -> None:
    layer = nn.Linear(200, 200)
    attach(layer, AP(sparsity=0.5, steps=10, w_start=1.0, w_scale=0.01), seed=3)
    w = w_of(layer)
    assert w.min().item() >= 1.0
    assert (w - 1).square().mean().sqrt().item() == pytest.approx(0.01, rel=0.02)
    usual = nn.Linear(200, 200)
    attach(usual, AP(sparsity=0.5, steps=10), seed=3)
    assert torch.allclose((w - 1) / 0.01, w_of(usual) / 2, atol=1e-4)  # the same draw


def test_layers_of_one_shape_start_with_different_w() -> None:
    alike = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    attach(alike, AP(sparsity=0.5, steps=10))
    first, second = w_of(alike).split(900)
    assert not torch.equal(first, second)


def test_the_letter_of_the_paper() -> None:
    method = AP.paper(gamma=0.02, w_step=0.1)
    assert (method.gamma, method.relative, method.w_schedule) == (0.02, False, "inverse_sqrt")
    assert (method.dense_start, method.w_step) == (0.0, 0.1)
    plain = Recipe(steps=40, lr=0.05, schedule="inverse_sqrt", momentum=0.0, clip=None)
    found = find("mlp", TASK, method, sparsity=[0.3, 0.9], recipe=plain, device="cpu")
    assert [arch.kept for arch in found] == [keep_count(found[0].total, s) for s in (0.3, 0.9)]


def test_the_penalty_of_the_paper_reaches_theta_too() -> None:
    # θ ← θ − β·(∇ + 2γθ): with a γ this large the weights shrink, however they are trained
    sizes = []
    for gamma in (0.01, 1.0):
        method = replace(plain_descent(0.5, 9, gamma=gamma), sparsity=None, steps=None)
        recipe = QUICK.but(steps=60, weight_decay=0.0)
        found = search_for(
            "mlp", TASK, method, sparsities=[0.01], recipe=recipe, weights=True, device="cpu"
        )
        assert found.architectures[0].provenance["recipe"]["weight_decay"] == 2 * gamma
        sizes.append(found.networks[0].model.fc2.weight.norm().item())
    assert sizes[1] < 0.5 * sizes[0]


def test_theta_starts_where_it_is_told_to() -> None:
    still = Recipe(steps=4, lr=1.0, schedule=lambda step, steps: 0.0)
    for start, check in (
        (0.02, lambda w, mine: w[w != 0].std().item() == pytest.approx(0.02, rel=0.05)),
        (
            "he",
            lambda w, mine: w[w != 0].std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.05),
        ),
        ("parent", lambda w, mine: torch.equal(w, torch.where(w != 0, mine, 0.0))),
    ):
        mine = build_parent("mlp", TASK, seed=11)
        found = search_for(
            mine,
            TASK,
            AP(theta_start=start),
            sparsities=[0.5],
            recipe=still,
            weights=True,
            device="cpu",
        )
        assert check(found.networks[0].model.fc2.weight.detach(), mine.fc2.weight.detach()), start


def test_a_loss_that_is_not_finite_ends_the_search() -> None:
    absurd = Recipe(steps=30, lr=1e30, clip=None)
    with pytest.raises(SearchError, match=r"at step \d+ of 30: try a smaller") as caught:
        find("mlp", TASK, AP(), sparsity=[0.0, 0.5], recipe=absurd, device="cpu")
    assert "\n" not in str(caught.value)


class Overflowing(nn.Module):
    """Gives infinite logits after some batches."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.layer, self.left = nn.Linear(64, 3), good

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.left -= 1
        return self.layer(x.flatten(1)) * (math.inf if self.left < 0 else 1.0)


@pytest.mark.parametrize("good", [3, 22, 39])
def test_a_network_that_overflows_ends_the_search_at_that_step(good: int) -> None:
    with pytest.raises(SearchError, match=f"at step {good} of 40"):
        find(Overflowing(good), TASK, AP(), sparsity=0.5, recipe=QUICK.but(steps=40), device="cpu")


def test_a_target_out_of_reach_is_an_error() -> None:
    method = AP(gamma=0.0, relative=False, w_step=1e-6)
    with pytest.raises(SearchError, match=r"short of 0\.9: raise gamma or w_step") as caught:
        find("mlp", TASK, method, sparsity=0.9, recipe=QUICK, device="cpu")
    assert "after 30 of 30 steps" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"t_l": 0.0}, "t_l is 0.0: expected a number above 0"),
        ({"t_s": -1.0}, "t_s is -1.0"),
        ({"w_scale": math.inf}, "w_scale is inf"),
        ({"w_start": -1.0}, "w_start is -1.0: expected a number from 0 on"),
        ({"w_step": math.nan}, "w_step is nan"),
        ({"layer_share": -1.0}, "layer_share is -1.0: expected a number from 0 on"),
        (
            {"layer_share": 1.0, "relative": False},
            "layer_share is 1.0 with relative=False: expected 0",
        ),
        ({"gamma": -1.0}, "gamma is -1.0: expected auto or a number from 0 on"),
        ({"dense_start": 0.9, "ramp_end": 0.5}, "dense_start is 0.9 and ramp_end 0.5"),
        ({"dense_start": -0.1}, "dense_start is -0.1"),
        ({"ramp_end": 1.5}, "ramp_end 1.5"),
        ({"w_schedule": "cosine"}, "unknown schedule 'cosine'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        AP(**settings)  # type: ignore[arg-type]
