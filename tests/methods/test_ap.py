"""Architecture pruning: its step by hand, its phases, its errors, and loops of the user's own."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import AP, Recipe, attach, build_parent, find, load_task
from aprune.connections import find_connections
from aprune.errors import SearchError, SettingError
from aprune.maths.schedules import ramp
from aprune.maths.select import keep_count
from aprune.methods import Search
from aprune.search import search as search_for

TASK = load_task("digits", classes=[0, 1, 2], images=150, seed=0)
QUICK = Recipe(steps=30, lr=0.03, batch=32)


def w_of(model: nn.Module) -> Tensor:
    """All w of a network as one vector; they are part of its state."""
    state = model.state_dict()
    return torch.cat([state[name].flatten().clone() for name in state if name.endswith(".0.w")])


def plain_descent(sparsity: float | tuple[float, ...], steps: int, **more: Any) -> AP:
    """The paper's step from the first step on, with numbers that are easy to follow."""
    return AP(
        sparsity=sparsity,
        steps=steps,
        relative=False,
        dense_start=0.0,
        **{"w_scale": 0.5, "w_step": 0.1, "w_schedule": "constant", "gamma": 0.5, **more},
    )


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 3))


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps, 16, 12, generator=generator)
    return [(part, part[:, :3].argmax(1)) for part in x]


def loop(
    model: nn.Module,
    search: Search,
    steps: int,
    *,
    optimiser: torch.optim.Optimizer | None = None,
    scale: float = 1.0,
    look: Callable[[int], None] = lambda step: None,
) -> None:
    """What a user writes."""
    for step, (x, y) in enumerate(batches(steps)):
        (scale * nn.functional.cross_entropy(model(x), y)).backward()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
        search.step()
        look(step)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt"])
def test_a_step_of_w_worked_by_hand(schedule: str) -> None:
    layer = nn.Linear(3, 1, bias=False)
    theta = torch.tensor([[1.0, -2.0, 0.5]])
    with torch.no_grad():
        layer.weight.copy_(theta)
    search = attach(layer, plain_descent(0.9, 9, t_s=2.0, gamma=0.25, w_schedule=schedule))
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


def test_gamma_auto_follows_the_schedule() -> None:
    model, steps = small_net(), 80
    method = AP(sparsity=0.8, steps=steps, dense_start=0.25, ramp_end=0.75)
    search = attach(model, method)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    phases: list[object] = []

    def look(step: int) -> None:
        phases.append(search.phase)
        wanted = 0.8 * ramp(step, steps, start=0.25, end=0.75)
        # γ ≥ 0: the gradient alone may switch off some more, but never are there too many on
        assert wanted - 2 / 450 <= search.sparsity <= wanted + 0.02, f"step {step}"

    loop(model, search, steps, optimiser=optimiser, look=look)
    # what the phase is after each step
    assert phases == ["dense"] * 19 + ["descent"] * 40 + ["frozen"] * 21


def test_w_stands_still_before_and_after_the_descent() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.8, steps=40, dense_start=0.25, ramp_end=0.75))
    start, seen = w_of(model), []
    loop(model, search, 40, look=lambda step: seen.append(w_of(model)))
    assert all(torch.equal(w, start) for w in seen[:10])
    moved = [not torch.equal(one, other) for one, other in pairwise(seen[9:])]
    assert moved == [True] * 20 + [False] * 10


@pytest.mark.parametrize("gamma", ["auto", 0.5])
def test_once_frozen_the_network_is_the_architecture(gamma: float | str) -> None:
    model = small_net()
    method = plain_descent(0.7, 60, gamma=gamma, ramp_end=0.5)
    search = attach(model, method)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    masks, weights = [], []

    def look(step: int) -> None:
        if search.phase == "frozen":
            masks.append(search.architecture())
            weights.append(model[0].weight.detach().clone())

    loop(model, search, 60, optimiser=optimiser, look=look)
    assert len(masks) > 10
    assert all(arch == masks[0] for arch in masks)
    mask = masks[0].mask("0.weight")
    # exactly: nothing of the sigmoid is left, and the rest trains on
    assert all(torch.equal(weight != 0, mask) for weight in weights)
    assert not torch.equal(weights[0], weights[-1])
    theta = dict(model.named_parameters())["0.parametrizations.weight.original"]
    assert torch.equal(model[0].weight[mask], theta[mask])


def test_gradients_of_zero_do_no_harm() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=[0.5, 0.9], steps=20, dense_start=0.0))
    seen: list[Tensor] = []
    loop(model, search, 20, scale=0.0, look=lambda step: seen.append(w_of(model)))
    assert all(bool(w.isfinite().all()) for w in seen)
    assert [search.architecture(s).kept for s in (0.5, 0.9)] == [225, 45]


def test_a_relative_step_does_not_know_the_scale_of_the_loss() -> None:
    runs = []
    for scale in (1.0, 1e-6, 1e6):
        model = small_net()
        search = attach(model, AP(sparsity=0.8, steps=40, dense_start=0.0))
        seen: list[Tensor] = []
        loop(model, search, 40, scale=scale, look=lambda _, m=model, s=seen: s.append(w_of(m)))
        runs.append((seen[10], search.architecture()))
    assert torch.allclose(runs[0][0], runs[1][0], rtol=1e-3, atol=1e-4)
    assert torch.allclose(runs[0][0], runs[2][0], rtol=1e-3, atol=1e-4)
    assert runs[0][1].overlap(runs[1][1]).jaccard > 0.95
    # while the gradient does count
    untouched = small_net()
    blind = attach(untouched, AP(sparsity=0.8, steps=40, dense_start=0.0))
    loop(untouched, blind, 40, scale=0.0)
    assert blind.architecture() != runs[0][1]


def test_what_the_loss_needs_is_kept() -> None:
    # Only the first 3 of 12 inputs matter to the labels.
    model = small_net()
    search = attach(model, AP(sparsity=0.8, steps=300), include="0.weight")
    loop(model, search, 300, optimiser=torch.optim.Adam(model.parameters(), 0.01))
    used = search.architecture().mask("0.weight").float().mean(0)
    assert used[:3].min() > 2 * used[3:].max()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("before", [True, False])
def test_any_optimiser_made_before_or_after(
    kind: type[torch.optim.Optimizer], before: bool
) -> None:
    model = small_net()
    theta = [id(parameter) for parameter in model.parameters()]
    method = AP(sparsity=0.5, steps=30)
    if before:
        optimiser = kind(model.parameters(), lr=0.05)
        search = attach(model, method)
    else:
        search = attach(model, method)
        optimiser = kind(model.parameters(), lr=0.05)
    # w is none of its business
    held = [id(p) for group in optimiser.param_groups for p in group["params"]]
    assert sorted(held) == sorted(theta)
    bare = small_net().state_dict()
    loop(model, search, 30, optimiser=optimiser)
    search.finish()
    assert search.architecture().kept == 225
    for name, value in model.state_dict().items():
        mask = search.architecture().masks().get(name, torch.ones(value.shape, dtype=torch.bool))
        assert not torch.equal(value[mask], bare[name][mask]), name
        assert not value[~mask].any()


def test_finish_gives_an_ordinary_network() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.5, steps=20))
    loop(model, search, 20)
    x = batches(1)[0][0]
    expected = model(x)
    search.finish()
    assert type(model[0]) is nn.Linear
    assert sorted(model.state_dict()) == sorted(small_net().state_dict())
    assert torch.equal(model(x), expected)
    assert list(find_connections(model)) == ["0.weight", "2.weight"]
    copy.deepcopy(model).load_state_dict(small_net().state_dict())


def test_state_and_copies_keep_the_mask() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.9, steps=20))
    loop(model, search, 20)
    x = batches(1)[0][0]
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    other = small_net()
    attach(other, AP(sparsity=0.9, steps=20), seed=9)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    assert torch.equal(other[0].weight != 0, search.architecture().mask("0.weight"))


def test_attaching_twice_is_refused() -> None:
    model = small_net()
    attach(model, AP(sparsity=0.5, steps=20))
    with pytest.raises(SettingError, match=r"0\.weight has a parametrisation already"):
        attach(model, AP(sparsity=0.5, steps=20))


@pytest.mark.parametrize("gamma", ["auto", 0.2])
def test_all_sparsities_of_one_search(gamma: float | str) -> None:
    model = small_net()
    wanted = (0.9, 0.1, 0.5)
    search = attach(model, plain_descent(wanted, 60, gamma=gamma))
    loop(model, search, 60)
    for sparsity in wanted:
        assert search.architecture(sparsity).kept == keep_count(450, sparsity)
    assert search.architecture() == search.architecture(0.9)
    with pytest.raises(SearchError, match=r"short of 0\.3"):
        search.architecture(0.3)


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
        method = plain_descent(0.5, 9, gamma=gamma)
        recipe = QUICK.but(steps=60, weight_decay=0.0)
        network = search_for(
            "mlp", TASK, method, sparsities=[0.01], recipe=recipe, weights=True, device="cpu"
        ).networks[0]
        sizes.append(network.model.fc2.weight.norm().item())
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


@pytest.mark.parametrize("relative", [True, False])
def test_a_gradient_that_is_not_finite_ends_a_loop_of_one_s_own(relative: bool) -> None:
    model = small_net()
    search = attach(model, AP(sparsity=(0.1, 0.9), steps=40, dense_start=0.0, relative=relative))
    x, y = batches(1)[0]
    for step in range(8):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * math.inf if step == 7 else loss).backward()
        if step < 7:
            search.step()
    with pytest.raises(SearchError, match="not finite at step 7 of 40: try a smaller"):
        search.step()
    for sparsity in (None, 0.1, 0.9):
        with pytest.raises(SearchError):
            search.architecture(sparsity)
    with pytest.raises(SearchError):
        search.finish()


def test_a_w_that_is_not_finite_ends_a_loop_of_one_s_own() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.9, steps=40, dense_start=0.0))
    loop(model, search, 5)
    with torch.no_grad():
        model[2].parametrizations.weight[0].w[0, 0] = math.nan
    with pytest.raises(SearchError, match="not finite at step 5 of 40"):
        search.step()
    with pytest.raises(SearchError):
        search.architecture()


def test_a_target_out_of_reach_is_an_error() -> None:
    method = AP(gamma=0.0, relative=False, w_step=1e-6)
    with pytest.raises(SearchError, match=r"short of 0\.9: raise gamma or w_step") as caught:
        find("mlp", TASK, method, sparsity=0.9, recipe=QUICK, device="cpu")
    assert "after 30 of 30 steps" in str(caught.value)


def test_asking_too_early_is_an_error() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.9, steps=40))
    loop(model, search, 10)
    with pytest.raises(SearchError, match=r"after 10 of 40 steps, short of 0\.9: take more steps"):
        search.architecture()
    with pytest.raises(SearchError, match=r"short of 0\.9"):
        search.finish()
    assert "parametrizations" in "".join(model.state_dict())  # still attached: one may go on


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"t_l": 0.0}, "t_l is 0.0: expected a number above 0"),
        ({"t_s": -1.0}, "t_s is -1.0"),
        ({"w_scale": math.inf}, "w_scale is inf"),
        ({"w_step": math.nan}, "w_step is nan"),
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give the method a sparsity and steps"),
        ({"sparsity": 0.5}, "give the method a sparsity and steps"),
        ({"steps": 10}, "give the method a sparsity and steps"),
        ({"sparsity": 0.5, "steps": 1}, "steps is 1: expected at least 2"),
        ({"sparsity": 1.0, "steps": 10}, "got 1.0, expected at least 0 and below 1"),
        ({"sparsity": (0.5, -0.1), "steps": 10}, "got -0.1"),
    ],
)
def test_attach_says_what_it_needs(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        attach(small_net(), AP(**settings))  # type: ignore[arg-type]
