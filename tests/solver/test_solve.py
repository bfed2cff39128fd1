"""`solve` against answers that are known: by hand, or because all subsets were tried."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aprune as ap
from aprune.errors import SettingError
from aprune.solver.exchange import exchange, neighbours_of
from aprune.solver.objective import Objective
from aprune.solver.scheme import Count, Scheme, descend


def quadratic(v: Tensor, q: Tensor, c: Tensor) -> Tensor:
    return v @ q @ v + c @ v


def draw(problems: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(problems, size, size, generator=generator, dtype=torch.float64)
    c = torch.randn(problems, size, generator=generator, dtype=torch.float64)
    return (q + q.transpose(1, 2)) / 2, c


def enumerate_all(size: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=size)), dtype=torch.float64)


def best_value(q: Tensor, c: Tensor, least: int, most: int, penalty: float = 0.0) -> float:
    points = enumerate_all(len(c))
    ones = points.sum(1)
    values = torch.einsum("nd,de,ne->n", points, q, points) + points @ c + penalty * ones
    return float(values[(ones >= least) & (ones <= most)].min())


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [({}, 0, 10), ({"exactly": 4}, 4, 4), ({"at_most": 3}, 0, 3), ({"penalty": 0.5}, 0, 10)],
)
def test_the_best_of_all_subsets_is_found(asked: dict[str, Any], least: int, most: int) -> None:
    q, c = draw(20, 10, seed=1)
    found = ap.solve(quadratic, 10, data=(q, c), seed=0, **asked)
    price = asked.get("penalty", 0.0)
    expected = [best_value(*pair, least, most, price) for pair in zip(q, c, strict=True)]
    assert [solution.value for solution in found] == pytest.approx(expected)
    for solution, a, b in zip(found, q, c, strict=True):
        v = solution.v.double()
        assert solution.value == pytest.approx(float(quadratic(v, a, b) + price * v.sum()))
        assert least <= int(solution.v.sum()) <= most
        assert solution.stopped == "settled"


def test_a_descent_alone_gets_far_and_the_exact_gradient_less_far() -> None:
    q, c = draw(40, 12, seed=2)
    gaps = {}
    for t_s in (10.0, 100.0):
        scheme = Scheme(t_s=t_s)
        found = ap.solve(quadratic, 12, data=(q, c), scheme=scheme, restarts=1, rounds=0)
        best = [best_value(*pair, 0, 12) for pair in zip(q, c, strict=True)]
        gaps[t_s] = sum(one.value - value for one, value in zip(found, best, strict=True)) / 40
        assert {solution.stopped for solution in found} == {"steps"}
    at_once = torch.ones(40, 1, 12, dtype=torch.float64)
    start = Objective(quadratic, (q, c), penalty=0.0, fit=None, sample=None).values(at_once)
    everything = float((start[:, 0] - torch.tensor(best)).mean())
    assert gaps[10.0] < 0.2 * everything
    assert gaps[10.0] < gaps[100.0]


def test_one_problem_gives_one_solution() -> None:
    worth = torch.tensor([3.0, -1.0, 2.0]).double()
    solution = ap.solve(lambda v: -(v @ worth), 3)
    assert solution.v.tolist() == [True, False, True]
    assert solution.value == -5.0
    assert solution.theta is None
    assert len(solution.trajectory) == Scheme().steps + 1
    assert solution.trajectory[0] == -4.0  # everything is there at first
    assert solution.evaluations > 0


def test_several_problems_are_solved_as_if_each_were_alone() -> None:
    q, c = draw(3, 6, seed=3)
    together = ap.solve(quadratic, 6, data=(q, c), exactly=2, restarts=8)
    for number, solution in enumerate(together):
        alone = ap.solve(
            quadratic, 6, data=(q[number : number + 1], c[number : number + 1]), exactly=2
        )
        assert solution.value == pytest.approx(alone[0].value)


def test_the_same_seed_gives_the_same_path() -> None:
    q, c = draw(2, 8, seed=4)
    one, two, other = (
        ap.solve(quadratic, 8, data=(q, c), restarts=1, seed=seed)[0].trajectory
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_theta_moves_along_with_w() -> None:
    target = torch.tensor([0.0, 2.0, 0.0, -1.0]).double()

    def f(v: Tensor, theta: Tensor) -> Tensor:
        return (v * theta - target).square().sum() + 0.01 * theta.square().sum()

    scheme = Scheme(steps=400, step=0.05)
    solution = ap.solve(f, 4, theta=torch.ones(4), penalty=0.1, scheme=scheme)
    assert solution.v.tolist() == [False, True, False, True]
    assert solution.theta is not None
    assert (solution.theta * solution.v).tolist() == pytest.approx([0, 2, 0, -1], abs=0.1)
    assert (
        solution.stopped == "steps"
    )  # a θ that belongs to one point says little of its neighbours


def test_a_fitted_theta_is_the_best_one() -> None:
    target = torch.tensor([1.0, 2.0, 0.5]).double()

    def f(v: Tensor, theta: Tensor) -> Tensor:
        return (v * theta - target).square().sum()

    def fit(v: Tensor) -> Tensor:
        return target / v.clamp(min=0.1)

    solution = ap.solve(f, 3, fit=fit, exactly=2, restarts=2)
    assert solution.v.tolist() == [True, True, False]
    assert solution.value == pytest.approx(0.25)
    assert solution.theta is not None
    assert solution.theta[:2].tolist() == [1.0, 2.0]
    assert solution.stopped == "settled"
    moved = ap.solve(f, 3, fit=fit, theta=torch.ones(3), exactly=2, restarts=2)
    assert moved.value == pytest.approx(0.25)
    assert moved.stopped == "settled"


def test_stochastic_gradients_come_from_the_sample() -> None:
    q, c = draw(1, 6, seed=5)
    asked: list[int] = []

    def sample(step: int) -> tuple[Tensor, Tensor]:
        asked.append(step)
        return -q, -c  # uphill

    scheme = Scheme(steps=7)
    down = ap.solve(quadratic, 6, data=(q, c), scheme=scheme, restarts=1, rounds=0)[0]
    up = ap.solve(quadratic, 6, data=(q, c), sample=sample, scheme=scheme, restarts=1, rounds=0)[0]
    assert asked == list(range(7))
    assert up.trajectory[0] == down.trajectory[0]  # valued with the data themselves
    assert up.trajectory[-1] > down.trajectory[-1]


@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_one_step_by_hand(drift: bool, relative: bool) -> None:
    scheme = Scheme(
        t_l=100.0,
        t_s=2.0,
        steps=1,
        step=0.5,
        schedule="constant",
        relative=relative,
        drift=drift,
    )
    slope = torch.tensor([3.0, -1.0]).double()
    objective = Objective(lambda v: v @ slope, (), penalty=0.25, fit=None, sample=None)
    w = torch.tensor([[[0.2, 0.4]]]).double()
    seen: list[tuple[int, list[bool]]] = []
    moved, theta = descend(
        objective,
        Count(0, 2, 2),
        scheme,
        w,
        None,
        lambda done, m, _: seen.append((done, m[0, 0].tolist())),
    )
    sigma = torch.sigmoid(2.0 * w)
    warm = 2.0 * sigma * (1 - sigma)
    # The price is counted once: as a drift, or as part of the gradient.
    gradient = slope * warm + 2 * 0.25 * (1 + w) if drift else (slope + 0.25) * warm
    if relative:
        gradient = gradient / gradient.square().mean().sqrt()
    assert torch.allclose(moved, w - 0.5 * gradient)
    assert theta is None
    assert seen == [(0, [True, True]), (1, [False, True])]


def test_a_drift_does_not_change_what_a_binary_point_costs() -> None:
    worth = torch.tensor([3.0, 1.0, 0.5]).double()
    for drift in (False, True):
        solution = ap.solve(
            lambda v: -(v @ worth), 3, penalty=0.75, scheme=Scheme(drift=drift), restarts=1
        )
        assert solution.v.tolist() == [True, True, False]
        assert solution.value == -4.0 + 2 * 0.75
        assert solution.trajectory[0] == -4.5 + 3 * 0.75


def test_points_are_looked_at_when_it_was_asked_for() -> None:
    q, c = draw(2, 8, seed=7)
    every = ap.solve(quadratic, 8, data=(q, c), restarts=1, rounds=0)
    some = ap.solve(quadratic, 8, data=(q, c), restarts=1, rounds=0, moments=[0, 3, 100])
    for all_of_them, few in zip(every, some, strict=True):
        assert torch.equal(all_of_them.trajectory[[0, 3, 100]], few.trajectory)
        assert torch.equal(all_of_them.ones[[0, 3, 100]], few.ones)
        assert len(all_of_them.ones) == 101
        assert few.ones[0] == 8
        assert few.value == few.trajectory.min()
        assert few.ones[few.trajectory.argmin()] == few.v.sum()
        assert all_of_them.evaluations - few.evaluations == 2 * 98


def test_a_problem_starts_by_its_own_seed_whoever_is_beside_it() -> None:
    q, c = (tensor.expand(3, *tensor.shape[1:]) for tensor in draw(1, 8, seed=8))
    ways = ap.solve(quadratic, 8, data=(q, c), restarts=2, rounds=0, seed=[4, 9, 4])
    (alone,) = ap.solve(quadratic, 8, data=(q[:1], c[:1]), restarts=2, rounds=0, seed=9)
    assert torch.equal(ways[0].trajectory, ways[2].trajectory)
    assert not torch.equal(ways[0].trajectory, ways[1].trajectory)
    assert ways[1].trajectory.tolist() == pytest.approx(alone.trajectory.tolist())


def test_a_function_may_leave_out_what_is_moved() -> None:
    scheme = Scheme(steps=3, drift=True)
    flat = ap.solve(lambda v, theta: theta.sum() ** 2, 3, theta=torch.ones(2), scheme=scheme)
    assert flat.trajectory[-1] < flat.trajectory[0]
    with torch.no_grad():  # gradients are taken whatever the caller has switched off
        assert ap.solve(lambda v: (v > 0.5).sum() * -1.0, 3, scheme=scheme).value == -3.0


def test_a_relative_step_does_not_know_the_scale() -> None:
    q, c = draw(1, 6, seed=6)
    small, large = (
        ap.solve(quadratic, 6, data=(scale * q, scale * c), restarts=1, rounds=0)[0].trajectory
        / scale
        for scale in (1e-6, 1e6)
    )
    assert torch.allclose(small, large)


@given(
    st.integers(1, 8).flatmap(
        lambda size: st.tuples(
            st.just(size), st.integers(1, size), st.booleans(), st.integers(0, 2**31)
        )
    )
)
@settings(deadline=None, max_examples=60)
def test_neighbours_keep_to_the_count(drawn: tuple[int, int, bool, int]) -> None:
    size, most, exact, seed = drawn
    count = Count(most if exact else 0, most, size)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(1, 1, size, generator=generator, dtype=torch.float64)
    m = count.project(w)
    assert count.least <= int(m.sum()) <= count.most
    objective = Objective(lambda v: v @ w[0, 0], (), penalty=0.0, fit=None, sample=None)
    points, possible = neighbours_of(objective, m, count, size, size * size, torch.float64)
    made = {tuple(point.tolist()) for point in points[possible]}
    here = tuple(m[0, 0].tolist())
    expected = set()
    for point in itertools.product((False, True), repeat=size):
        differs = sum(a != b for a, b in zip(point, here, strict=True))
        swapped = differs == 2 and sum(point) == sum(here)
        if (differs == 1 or swapped) and count.least <= sum(point) <= count.most:
            expected.add(point)
    assert made == expected


def test_exchanges_end_after_their_rounds() -> None:
    worth = torch.arange(6.0).double()
    objective = Objective(lambda v: -(v @ worth), (), penalty=0.0, fit=None, sample=None)
    m = torch.tensor([[[True, True, False, False, False, False]]])
    value = objective.values(m.double())
    _, once, done = exchange(objective, m, value, Count(2, 2, 6), rounds=1, wide=6)
    assert (once.item(), done.item()) == (-6.0, False)
    best, twice, done = exchange(objective, m, value, Count(2, 2, 6), rounds=9, wide=6)
    assert (twice.item(), done.item()) == (-9.0, True)
    assert best[0, 0].tolist() == [False] * 4 + [True] * 2
    solution = ap.solve(
        lambda v: -(v @ worth), 6, exactly=2, scheme=Scheme(steps=1), rounds=1, restarts=1
    )
    assert solution.stopped in ("rounds", "settled")


@pytest.mark.parametrize("size", [0, 3])
def test_all_or_none_leave_nothing_to_choose(size: int) -> None:
    solution = ap.solve(lambda v: v.sum(), 3, exactly=size, restarts=2)
    assert int(solution.v.sum()) == size
    assert solution.value == float(size)
    assert solution.stopped == "settled"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"exactly": 5}, "5 ones are asked for among 4"),
        ({"at_most": -1}, "-1 ones are asked for"),
        ({"exactly": 1, "at_most": 2}, "both given"),
        ({"restarts": 0}, "restarts is 0"),
        ({"rounds": -1}, "rounds -1"),
        ({"moments": []}, "expected numbers from 0 to 100"),
        ({"moments": [0, 101]}, "expected numbers from 0 to 100"),
        ({"seed": [1, 2]}, "2 seeds for 1 problems"),
        ({"penalty": -1.0}, "penalty is -1.0"),
        ({"penalty": float("nan")}, "penalty is nan"),
        ({"data": (torch.zeros(2, 1), torch.zeros(3, 1))}, "number of problems"),
        ({"data": ()}, "number of problems"),
        ({"data": (torch.tensor(1.0),)}, "number of problems"),
    ],
)
def test_bad_settings_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ap.solve(lambda v, *_: v.sum(), 4, **asked)


@pytest.mark.parametrize(
    "bad",
    [
        {"t_l": 0.0},
        {"t_s": float("inf")},
        {"steps": 0},
        {"step": -1.0},
        {"spread": float("nan")},
        {"ramp_end": 0.0},
        {"schedule": "someday"},
    ],
)
def test_bad_schemes_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Scheme(**bad)


def test_functions_that_cannot_be_computed_so_are_named() -> None:
    with pytest.raises(SettingError, match="expected one number for one v"):
        ap.solve(lambda v: v, 3)
    for wrong, kind in (("x", "str"), (1.0, "float"), (None, "NoneType")):
        with pytest.raises(SettingError, match=f"f gave an object of type {kind}: expected a tens"):
            ap.solve(lambda v, wrong=wrong: wrong, 3)
        with pytest.raises(SettingError, match=f"fit gave an object of type {kind}: expected a"):
            ap.solve(lambda v, θ: v @ θ, 3, fit=lambda v, wrong=wrong: wrong)
    with pytest.raises(SettingError, match="many points at once"):
        ap.solve(lambda v: v.sum() if v.sum() > 1 else -v.sum(), 3)
    with pytest.raises(SettingError, match="not finite at any binary point"):
        ap.solve(lambda v: v.sum() * float("nan"), 3)
    with pytest.raises(SettingError, match="size is 0"):
        ap.solve(lambda v: v.sum(), 0)


def test_a_survey_says_what_a_place_is_worth() -> None:
    q, c = draw(1, 7, seed=8)
    q = q - torch.diag_embed(q.diagonal(dim1=1, dim2=2))  # linear in every single place
    objective = Objective(quadratic, (q, c), penalty=0.3, fit=None, sample=None)
    m = torch.tensor([[[True, False, True, False, False, True, False]]])
    values, worth = objective.survey(m.double())
    for place in range(7):
        other = m.clone()
        other[..., place] = ~other[..., place]
        change = float(objective.values(other.double()) - values)
        assert change == pytest.approx(float(worth[0, 0, place]) * (-1 if m[0, 0, place] else 1))


def test_points_that_meet_go_on_as_one() -> None:
    q, c = draw(1, 8, seed=9)
    one = torch.tensor([True] * 4 + [False] * 4)
    counts = []
    for rows in (1, 5):
        objective = Objective(quadratic, (q, c), penalty=0.0, fit=None, sample=None)
        m = one.expand(1, rows, 8)
        value = objective.values(m.double())
        objective.evaluations = 0
        _, best, settled = exchange(objective, m, value, Count(4, 4, 8), rounds=20, wide=8)
        counts.append(objective.evaluations)
        assert bool(settled[0, best.argmin()])
    assert counts[0] == counts[1]
