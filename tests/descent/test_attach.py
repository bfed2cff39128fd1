"""Architecture pruning in a training loop of the user's own."""

import copy
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import AP, IMP, Recipe, attach, build_parent, find, load_task, search, transfer
from aprune.connections import find_connections
from aprune.errors import NetworkWarning, SearchError, SettingError
from aprune.initialise import initialise
from aprune.maths.schedules import ramp
from aprune.maths.select import keep_count
from aprune.methods import Search
from helpers import plain_descent, w_of


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


def test_gamma_auto_follows_the_schedule() -> None:
    model, steps = small_net(), 80
    method = AP(sparsity=0.8, steps=steps, dense_start=0.25, ramp_end=0.75)
    search = attach(model, method)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    phases: list[object] = []

    def look(step: int) -> None:
        phases.append(search.phase)
        wanted = 0.8 * ramp(step, steps, start=0.25, end=0.75)
        # γ ≥ 0: the gradient alone may switch off some more; but hardly are there too many on
        assert wanted - 4 / 450 <= search.sparsity <= wanted + 0.02, f"step {step}"

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
    search = attach(model, AP(sparsity=0.8, steps=300, w_step=0.04), include="0.weight")
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
    assert list(model.state_dict()) == list(small_net().state_dict())
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


def test_an_average_of_the_weights_outlives_the_search() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.9, steps=20))
    loop(model, search, 20)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    search.finish()
    x = batches(1)[0][0]
    assert torch.equal(average(x), model(x))


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
    with pytest.raises(
        SettingError, match=r"0\.3 was not asked for: expected one of 0\.1, 0\.5, 0\.9"
    ):
        search.architecture(0.3)


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


def test_a_mask_that_no_gradient_reaches_is_no_secret() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=(0.5, 0.9), steps=20))
    with pytest.warns(NetworkWarning, match=r"no gradient has reached the mask, .* copy") as told:
        loop(copy.deepcopy(model), search, 20)
    assert len(told) == 1
    model = small_net()
    search = attach(model, AP(sparsity=(0.5, 0.9), steps=20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(model, search, 20)


def test_finishing_twice_is_finishing_once() -> None:
    model = small_net()
    search = attach(model, AP(sparsity=0.9, steps=20))
    loop(model, search, 20)
    search.finish()
    before = copy.deepcopy(model.state_dict())
    search.finish()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_architecture_is_carried_over_once_the_search_is_finished() -> None:
    task = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3))
    search = attach(model, AP(sparsity=0.5, steps=10, dense_start=0.0))
    push(model, search, 10, 1, 8, 8)
    found, quick = search.architecture(), Recipe(steps=5, lr=0.03)
    with pytest.raises(
        SettingError, match=r"1\.weight .* a search: call search\.finish\(\) first$"
    ):
        transfer(found, model, task, recipe=quick, device="cpu")
    search.finish()
    assert transfer(found, model, task, recipe=quick, device="cpu").architecture == found


def test_only_ap_can_be_attached() -> None:
    with pytest.raises(SettingError, match="attach got imp: expected AP"):
        attach(small_net(), IMP())  # type: ignore[arg-type]


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


def push(model: nn.Module, search: Search, steps: int, *shape: int) -> None:
    """Some gradient or other, step after step."""
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        model(x).square().sum().backward()
        search.step()


@pytest.mark.parametrize(
    ("norm", "ramp_end", "dense"), [(0, 1.0, 20), (1, 1.0, 12), (0, 0.9, 18), (1, 0.5, 10)]
)
def test_networks_without_norms_stay_dense_for_longer(
    norm: int, ramp_end: float, dense: int
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), *[nn.LayerNorm(4)] * norm)
    search = attach(model, AP(sparsity=0.5, steps=40, ramp_end=ramp_end))
    phases = []
    for _ in range(40):
        phases.append(search.phase)
        push(model, search, 1, 4)
    assert phases.count("dense") == dense


def test_a_whole_number_is_a_sparsity_too() -> None:
    assert attach(nn.Linear(4, 4), AP(sparsity=0, steps=10)).sparsities == (0.0,)


def test_a_sparsity_given_twice_counts_once() -> None:
    layer = nn.Linear(4, 4)
    search = attach(layer, AP(sparsity=(0.5, 0.5), steps=10, dense_start=0.0))
    push(layer, search, 10, 4)
    assert search.phase == "frozen"


def test_a_sparsity_that_leaves_nothing_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="leaves nothing"):
        attach(nn.Linear(4, 4), AP(sparsity=0.999, steps=10))


def test_any_whole_number_is_a_seed() -> None:
    attach(nn.Linear(4, 4), AP(sparsity=0.5, steps=10), seed=2**60)


@pytest.mark.parametrize(
    "wrong", [{"theta_start": "xavier"}, {"theta_start": -1.0}, {"gamma": "much"}, {"t_l": "hot"}]
)
def test_settings_of_the_wrong_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        AP(**wrong)


def test_an_early_end_of_the_ramp_is_kept_to() -> None:
    layer = nn.Linear(64, 64)
    search = attach(layer, AP(sparsity=0.5, steps=100, ramp_end=0.3))
    push(layer, search, 31, 64)
    assert search.phase == "frozen"


def test_what_was_excluded_is_known_when_it_is_carried_over() -> None:
    task = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
    model = build_parent("mlp", task)
    method = AP(sparsity=0.5, steps=10, dense_start=0.0)
    search = attach(model, method, exclude="fc3.*")
    push(model, search, 10, 1, 8, 8)
    found = search.architecture()
    result = transfer(found, "mlp", task, recipe=Recipe(steps=5, lr=0.03), device="cpu")
    assert result.architecture == found


def test_weights_kept_at_sparsity_zero_are_trained() -> None:
    task = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
    recipe = Recipe(steps=100, lr=0.03)
    found = search("mlp", task, AP(), sparsities=[0.0, 0.5], recipe=recipe, weights=True)
    right = found.networks[0].predict(task.test_images) == task.test_labels
    assert right.float().mean() > 0.8


def test_names_that_look_like_patterns_are_names() -> None:
    task = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
    recipe = Recipe(steps=20, lr=0.03)
    assert find(_Bracketed(), task, AP(), sparsity=0.5, recipe=recipe).total == 64 * 9 + 9 * 3


class _Bracketed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a[0]": nn.Linear(64, 9), "b": nn.Linear(9, 3)})

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["b"](self.parts["a[0]"](x.flatten(1)).relu())


def test_w_has_nothing_to_do_with_the_weights_of_the_same_seed() -> None:
    layer = nn.Linear(50, 50)
    initialise(layer, scheme="he", seed=0)
    theta = layer.weight.detach().abs().flatten()
    attach(layer, AP(sparsity=0.5, steps=10), seed=0)
    assert abs(torch.stack([w_of(layer), theta]).corrcoef()[0, 1]) < 0.2
