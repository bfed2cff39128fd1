"""Theorem 1 under test: the problem and a run beside plain versions, and which bound holds."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from aprune.cli import main
from aprune.errors import SettingError
from aprune.experiments import theorem as experiment
from aprune.experiments.quadratic import (
    Quadratic,
    Scheme,
    choose_moments,
    descend,
    make_quadratic,
)
from aprune.experiments.theorem import FAR, NEAR, compare, gather, judge, tabulate, theorem
from aprune.maths.bound import Theorem
from aprune.maths.seed import derive_seed

SCHEME = Scheme(t_l=5.0, t_s=2.0, c=0.8, spread=1.0)


@pytest.mark.parametrize("seed", range(8))
def test_largest_gradient_is_that_of_a_corner(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4, 5, generator=generator).double()
    optimum = torch.rand(5, generator=generator).double()
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=5))).double()
    residuals = ((corners - optimum) @ inputs.T).abs() + 0.3
    expected = (residuals * inputs.norm(dim=1)).max()
    assert Quadratic(inputs, optimum, 0.3).largest_gradient == pytest.approx(float(expected))


@pytest.mark.parametrize("optimum", ["interior", "binary"])
def test_problems_are_drawn_as_they_say(optimum: str) -> None:
    problem = make_quadratic(optimum, dimension=500)  # type: ignore[arg-type]
    assert problem.gap(problem.optimum) == 0
    low, high = (0.1, 0.5) if optimum == "interior" else (0.0, 1.0)
    assert float(problem.optimum.min()) == pytest.approx(low, abs=0.01)
    assert float(problem.optimum.max()) == pytest.approx(high, abs=0.01)
    assert problem.inputs.square().sum(1).mean().item() == pytest.approx(1 / 3, abs=0.01)


def test_a_run_beside_a_plain_loop() -> None:
    problem, steps = make_quadratic("interior", dimension=3, samples=4, noise=0.2), 7
    generator = torch.Generator().manual_seed(derive_seed(1, "theorem"))
    w = torch.randn(3, generator=generator).abs().tolist()
    w = [x / 5.0 for x in w]
    chosen = torch.randint(8, (steps,), generator=generator).tolist()
    best = problem.optimum.tolist()
    seen, gradients, errors, biases, sizes = [], [], [], [], [max(w)]
    for i, number in enumerate(chosen, start=1):
        x, sign = problem.inputs[number // 2].tolist(), 1 - 2 * (number % 2)
        v = [_sigma(5.0 * a) for a in w]
        seen.append(v)
        y = sum(a * b for a, b in zip(x, best, strict=True)) + sign * 0.2
        residual = sum(a * b for a, b in zip(x, v, strict=True)) - y
        slope, alpha = [residual * a for a in x], 0.8 / math.sqrt(i)
        w = [
            a - alpha * g * 2 * _sigma(2 * a) * (1 - _sigma(2 * a))
            for a, g in zip(w, slope, strict=True)
        ]
        after = [_sigma(5.0 * a) for a in w]
        gradients.append(sum(g * g for g in slope))
        error = [g + (b - a) / alpha for g, a, b in zip(slope, v, after, strict=True)]
        errors.append(sum(r * r for r in error))
        biases.append(sum(r * (a - b) for r, a, b in zip(error, v, best, strict=True)))
        sizes += [abs(a) for a in w]
    row = descend(problem, [SCHEME], seeds=[0, 1], steps=steps).iloc[-1]
    mean = torch.tensor(seen).double().mean(0)
    assert (row["seed"], row["steps"]) == (1, steps)
    assert row["average"] == pytest.approx(float(problem.gap(mean)), rel=1e-5)
    assert row["last"] == pytest.approx(
        float(problem.gap(torch.tensor(seen[-1]).double())), rel=1e-5
    )
    away = [sum((a - b) ** 2 for a, b in zip(v, best, strict=True)) for v in seen]
    assert row["r2"] == pytest.approx(max(away))
    assert row["m"] == pytest.approx(max(sizes))
    assert row["g_seen"] == pytest.approx(math.sqrt(max(gradients)))
    assert row["bias"] == pytest.approx(sum(biases) / steps)
    assert row["ratio_mean"] == pytest.approx(sum(errors) / steps / max(gradients))
    assert row["ratio_max"] == pytest.approx(max(errors) / max(gradients))
    bounds = Theorem(5, 2, 0.8, g=problem.largest_gradient, m=row["m"], r2=row["r2"])
    assert row["constant"] == bounds.constant
    assert row["printed"] == bounds.printed(steps)
    assert row["corrected"] == bounds.corrected(steps)
    assert row["with_bias"] == bounds.corrected(steps) + row["bias"]
    assert row["unconditional"] == bounds.unconditional(steps)


def test_the_bias_of_one_step_by_hand() -> None:
    # v is 1 to all digits and stays there, so r is the gradient, ¾ ± ⅛, and v − v* is ¾
    problem = Quadratic(torch.ones(1, 1).double(), torch.tensor([0.25]).double(), noise=0.125)
    found = descend(problem, [Scheme(4.0, 4.0, 1.0, 1e6)], seeds=range(8), steps=1)
    assert set(found["bias"]) == {0.625 * 0.75, 0.875 * 0.75}
    assert found["with_bias"].tolist() == (found["corrected"] + found["bias"]).tolist()


def _sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_runs_do_not_touch_each_other() -> None:
    problem, other = make_quadratic("binary", dimension=6), Scheme(50.0, 3.0, 0.1, 4.0)
    both = descend(problem, [other, SCHEME], seeds=[3, 4], steps=20)
    alone = descend(problem, [SCHEME], seeds=[4], steps=20)
    part = both[(both["t_l"] == 5.0) & (both["seed"] == 4)].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, alone)


def test_moments_are_spread_over_the_decades() -> None:
    moments = choose_moments(10_000)
    assert moments == sorted(set(moments))
    assert (moments[0], moments[-1]) == (1, 10_000)
    assert sum(moment <= 100 for moment in moments) > 10


def worst(optimum: str, scheme: Scheme) -> dict[str, float]:
    problem = make_quadratic(optimum)  # type: ignore[arg-type]
    frame = descend(problem, [scheme], seeds=range(4), steps=2_000)
    assert (frame["ratio_max"] <= frame["constant"]).all()
    ratios = compare(frame.assign(optimum=optimum))
    return ratios.drop(columns=["optimum"]).max().to_dict()


def test_the_printed_bound_does_not_hold() -> None:
    found = worst("binary", Scheme(4.0, 4.0, 0.01, NEAR))
    assert found["last/printed"] > 3
    assert found["average/printed"] > 3
    assert found["average/corrected"] < 1


def test_the_corrected_bound_needs_its_assumption() -> None:
    stuck = worst("binary", Scheme(4.0, 4.0, 1.0, FAR))
    assert stuck["average/corrected"] > 1.5
    assert stuck["average/unconditional"] < 1
    assert worst("binary", Scheme(100.0, 0.16, 1.0, FAR))["average/corrected"] < 1


@pytest.mark.parametrize("optimum", ["interior", "binary"])
@pytest.mark.parametrize("temperatures", experiment.TEMPERATURES)
@pytest.mark.parametrize("spread", [NEAR, FAR])
def test_the_bias_completes_the_corrected_bound(
    optimum: str, temperatures: tuple[float, float], spread: float
) -> None:
    # half, since ∇Fᵀ(v − v*) is twice the gap of a quadratic loss
    assert worst(optimum, Scheme(*temperatures, 1.0, spread))["average/with_bias"] < 0.5


PRINTED = 1 / 2 + 3 * (1 + math.log(4)) / 4  # of both cases at T = 4: 2.29


def made_up() -> pd.DataFrame:
    """Two cases with two seeds at two T; c = G = 1, the larger R² and the larger M in different runs."""
    cases = [
        {"optimum": "interior", "t_l": 4.0, "t_s": 4.0, "c": 1.0, "spread": NEAR},
        {"optimum": "binary", "t_l": 4.0, "t_s": 4.0, "c": 1.0, "spread": FAR},
    ]
    gaps = {1: [(1, 1), (3, 1)], 4: [(3, 1), (6, 5)]}  # average and last of both seeds
    seen = [{"r2": 8.0, "m": 0.0, "bias": 1.0}, {"r2": 2.0, "m": 1e6, "bias": 3.0}]
    return pd.DataFrame(
        [
            {**case, "seed": seed, "steps": steps, "average": a * factor, "last": b, "g": 1.0}
            | {**seen[seed], "constant": 2.0 * seed}
            | Theorem(4, 4, 1, g=1, m=seen[seed]["m"], r2=seen[seed]["r2"]).bounds(
                steps, seen[seed]["bias"]
            )
            | {"ratio_mean": 0.1 * factor + seed, "ratio_max": 0.5 * seed}
            for case, factor in zip(cases, (0.1, 1.0), strict=True)
            for steps, pair in gaps.items()
            for seed, (a, b) in enumerate(pair)
        ]
    )


def test_bounds_are_for_the_largest_constants_and_the_mean_bias() -> None:
    # R² = 8 and C = 2 together: 8/2 + 3, half of it at T = 4; the bias is (1 + 3)/2
    cases = gather(made_up()).set_index(["spread", "steps"])
    assert len(cases) == 4
    for spread in (NEAR, FAR):
        assert cases.loc[spread, "printed"].tolist() == pytest.approx([4.0, PRINTED])
        assert cases.loc[spread, "corrected"].tolist() == pytest.approx([7.0, 3.5])
        assert cases.loc[spread, "with_bias"].tolist() == pytest.approx([9.0, 5.5])
        assert cases.loc[spread, "unconditional"].tolist() == pytest.approx([11.0, 7.5])


def test_mean_gaps_are_compared_with_the_bounds() -> None:
    ratios = compare(made_up()).set_index(["spread", "steps"])
    assert ratios.loc[(FAR, 1), "average/printed"] == pytest.approx(0.5)  # (1 + 3)/2 over 4
    assert ratios.loc[(FAR, 4), "average/printed"] == pytest.approx(4.5 / PRINTED)
    assert ratios.loc[(FAR, 4), "average/corrected"] == pytest.approx(4.5 / 3.5)
    assert ratios.loc[(FAR, 4), "average/with_bias"] == pytest.approx(4.5 / 5.5)
    assert ratios.loc[(NEAR, 4), "average/unconditional"] == pytest.approx(0.06)
    assert ratios.loc[(NEAR, 4), "last/printed"] == pytest.approx(3 / PRINTED)


def test_a_bound_below_zero_is_crossed() -> None:
    ratios = compare(made_up().assign(bias=-7.0)).set_index(["spread", "steps"])
    assert ratios.loc[NEAR, "average/with_bias"].tolist() == [math.inf, math.inf]


def test_the_table_has_the_worst_of_each_start() -> None:
    table = tabulate(made_up())
    assert table["spread"].tolist() == [NEAR, FAR]
    assert table["average/printed"].tolist() == pytest.approx([0.45 / PRINTED, 4.5 / PRINTED])
    assert table["average/with_bias"].tolist() == pytest.approx([0.45 / 5.5, 4.5 / 5.5])
    assert table["C"].tolist() == [2.0, 2.0]
    assert table["ratio_mean"].tolist() == pytest.approx([0.51, 0.6])
    assert table["ratio_max"].tolist() == [0.5, 0.5]


def test_the_verdict_counts_cases_and_runs() -> None:
    said = judge(made_up())
    assert "the last step is above the printed bound in 2 of 2 cases (worst 1.31 times)" in said
    assert "that of the average in 1 of 2 cases (worst 1.97 times)" in said
    assert "with the measured bias is crossed in 0 of 2 cases (worst 0.818 times)" in said
    assert "as if E r = 0, in 1 of 2 cases (worst 1.29 times)" in said
    assert "with the largest bias in 0 of 2 cases (worst 0.6 times)" in said
    assert "Of the 1 cases with the near start" in said
    # far start, T = 4: gaps of 3 and 6 over 1.1 and 2.3, 2.5 and 2, 3.5 and 5, 2.5 and 4
    assert said.endswith(
        "printed, corrected, with_bias, unconditional in 0, 0, 0, 0;"
        " of the 4 single runs in 2, 2, 1, 2."
    )


def test_files_and_figure(tmp_path: Path) -> None:
    result = theorem(dimension=4, seeds=2, steps=20, out=tmp_path)
    again = theorem(dimension=4, seeds=2, steps=20, out=tmp_path / "again")
    pd.testing.assert_frame_equal(pd.read_parquet(result.parquet), again.frame)
    assert result.png.read_bytes() == again.png.read_bytes()
    assert len(result.frame.groupby(["optimum", "t_l", "t_s", "c", "spread"])) == 48
    panels = experiment.draw(result.frame).axes
    assert [len(axes.lines) for axes in panels] == [6, 6, 6, 6]
    assert all(line.get_ydata().size for axes in panels for line in axes.lines)  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [{"dimension": 0}, {"seeds": 0}, {"steps": 0}])
def test_nonsense_is_refused(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at least 1 of each"):
        theorem(**wrong, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call: Callable[..., int] = lambda *more: main(  # noqa: E731
        ["reproduce", "theorem", "--dimension", "4", "--seeds", "1", "--out", str(tmp_path), *more]
    )
    assert call("--steps", "10", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["png"]).exists()
    assert len(told["table"]) == 8
    assert call("--steps", "10") == 0
    assert told["verdict"] in capsys.readouterr().out
    assert call("--steps", "0") == 2
    assert "at least 1 of each" in capsys.readouterr().err
