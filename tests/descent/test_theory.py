"""What a search measures of Theorem 1: by hand on two connections, and without touching the search."""

import math
from dataclasses import asdict, replace
from typing import NoReturn

import pytest
import torch
from torch import Tensor, nn

from aprune import AP, Architecture, Recipe, attach, find, load_task
from aprune.descent import Search
from aprune.descent.theory import Theory
from aprune.finding import search
from aprune.maths.bound import error_constant
from aprune.training import describe_settings
from helpers import plain_descent, w_of

RECIPE = Recipe(steps=60, lr=0.05, batch=32)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def tiny(**settings: object) -> tuple[nn.Linear, Search]:
    """Two connections with θ = (2, −1) and w = (0.6, 0.8)."""
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, -1.0]]))
    search = attach(layer, plain_descent(0.5, 10, t_l=4.0, t_s=2.0, record=True, **settings))
    with torch.no_grad():
        search.w["weight"].copy_(torch.tensor([[0.6, 0.8]]))
    return layer, search


def step_by_hand(w: list[float], slope: list[float], alpha: float) -> tuple[float, list[float]]:
    """‖r‖² of a step with t_l = 4 and t_s = 2, and where it leads without the penalty."""
    after = [
        x - alpha * s * 2 * sigma(2 * x) * sigma(-2 * x) for x, s in zip(w, slope, strict=True)
    ]
    errors = [
        s + (sigma(4 * y) - sigma(4 * x)) / alpha for x, y, s in zip(w, after, slope, strict=True)
    ]
    return sum(error**2 for error in errors), after


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_two_connections_by_hand(gamma: float) -> None:
    layer, search = tiny(gamma=gamma)
    assert search.theory is None
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)  # moves θ before w moves
    layer(torch.tensor([3.0, 5.0])).sum().backward()
    optimiser.step()
    search.step()
    # ∂L/∂θ̃ = x, so ∂L/∂v = x ∘ θ = (6, −5), with the θ that the loss was computed with
    square, after = step_by_hand([0.6, 0.8], [6.0, -5.0], alpha=0.1)
    theory = search.theory
    assert theory is not None
    largest = max(0.8, *(abs(w) for w in after))
    assert largest > 0.8
    g, m, c = theory.G, theory.M, theory.C
    assert (g, m) == pytest.approx((math.sqrt(61), largest))
    assert c == pytest.approx(error_constant(4, 2, largest))
    assert theory.ratio_max == pytest.approx(square / 61, rel=1e-5)
    assert theory.ratio_mean == theory.ratio_max
    assert theory.steps == 1


def test_mean_and_largest_of_two_steps_by_hand() -> None:
    layer, search = tiny(gamma=0.0)
    w, slopes, squares = [0.6, 0.8], ([6.0, -5.0], [-2.0, 1.0]), []
    for x, slope in zip(([3.0, 5.0], [-1.0, -1.0]), slopes, strict=True):
        layer(torch.tensor(x)).sum().backward()
        search.step()
        square, w = step_by_hand(w, slope, alpha=0.1)
        squares.append(square)
    theory = search.theory
    assert theory is not None
    g = theory.G
    assert g == pytest.approx(math.sqrt(61))  # of the first step; the second has √5
    assert theory.ratio_max == pytest.approx(max(squares) / 61, rel=1e-5)
    assert theory.ratio_mean == pytest.approx(sum(squares) / 2 / 61, rel=1e-5)


def test_a_weight_that_is_used_twice_and_one_that_is_not_used() -> None:
    layer, search = tiny(gamma=0.0)
    (layer(torch.tensor([1.0, 1.0])) + layer(torch.tensor([2.0, 4.0]))).sum().backward()
    search.step()
    search.step()  # nothing came back: no gradient, no error
    theory = search.theory
    assert theory is not None
    g = theory.G
    assert g == pytest.approx(math.sqrt(6.0**2 + 5.0**2))
    assert theory.ratio_mean == pytest.approx(theory.ratio_max / 2)


def test_steps_of_no_size_are_not_noted() -> None:
    layer, search = tiny(w_schedule=lambda step, _: float(step == 1))
    for _ in range(3):
        layer(torch.tensor([3.0, 5.0])).sum().backward()
        search.step()
    assert search.theory is not None
    assert search.theory.steps == 1


def test_a_search_without_gradients_has_no_error() -> None:
    _, search = tiny()
    search.step()
    theory = search.theory
    assert theory is not None
    assert (theory.G, theory.ratio_mean, theory.ratio_max, theory.steps) == (0, 0, 0, 1)


@pytest.mark.parametrize("gamma", ["auto", 1e-3])
def test_recording_changes_nothing(gamma: float | str) -> None:
    def run(record: bool) -> tuple[Tensor, Search]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
        method = AP(sparsity=0.5, steps=40, gamma=gamma, dense_start=0.5, record=record)  # type: ignore[arg-type]
        search = attach(model, method)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            x = torch.randn(16, 1, 8, 8)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), (x[:, 0, 0, 0] > 0).long()).backward()
            optimiser.step()
            search.step()
        return w_of(model), search

    (plain, without), (recorded, with_) = run(False), run(True)
    assert torch.equal(plain, recorded)
    assert without.theory is None
    assert with_.theory is not None
    assert with_.theory.steps == 10  # 30 of 40, of which the first 20 are dense
    assert 0 < with_.theory.ratio_mean <= with_.theory.ratio_max <= with_.theory.C


def test_find_writes_it_down(tmp_path: object) -> None:
    task = load_task("digits", classes=[0, 1, 2])
    plain = find("mlp", task, AP(), sparsity=[0.5, 0.9], recipe=RECIPE)
    recorded = search("mlp", task, AP(record=True), sparsities=[0.5, 0.9], recipe=RECIPE)
    for one, other in zip(plain, recorded.architectures, strict=True):
        assert one.fingerprint == other.fingerprint
        assert "theory" not in one.provenance
        assert "record" not in one.provenance["settings"]
        assert one.provenance["train_loss"] == other.provenance["train_loss"]
        theory = Theory(**other.provenance["theory"])
        assert 0 < theory.ratio_mean <= theory.ratio_max <= theory.C
        assert theory.M > 1
        file = f"{tmp_path}/a.arch.safetensors"
        other.save(file)
        assert Architecture.load(file).provenance["theory"] == asdict(theory)


def test_attach_writes_it_down() -> None:
    layer, search = tiny(gamma=10.0)
    for _ in range(10):
        layer(torch.tensor([3.0, 5.0])).sum().backward()
        search.step()
    assert search.theory is not None
    assert search.architecture().provenance["theory"] == asdict(search.theory)


def test_weights_are_not_moved_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("fused")

    monkeypatch.setattr("aprune.methods.ap.FusedUpdate", refuse)
    monkeypatch.setattr("aprune.methods.ap.choose_engine", lambda *_: "fused")
    task = load_task("digits", classes=[0, 1])
    arch = find("logistic", task, AP(record=True), sparsity=0.5, recipe=RECIPE)
    assert "theory" in arch.provenance
    with pytest.raises(AssertionError, match="fused"):
        find("logistic", task, AP(), sparsity=0.5, recipe=RECIPE)


def test_what_was_searched_before_keeps_its_name() -> None:
    before = {
        "sparsity": None,
        "steps": None,
        "t_l": 100.0,
        "t_s": 10.0,
        "w_scale": 2.0,
        "theta_start": "he",
        "w_step": 0.01,
        "w_schedule": "warm_up",
        "relative": True,
        "gamma": "auto",
        "dense_start": None,
        "ramp_end": 0.9,
    }
    assert describe_settings(AP()) == before
    assert describe_settings(replace(AP(), record=True)) == {**before, "record": True}
