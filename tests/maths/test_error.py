"""The error of the warm gradient: against plain double precision, and never above what C allows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aprune.maths.bound import Theorem, error_constant
from aprune.maths.error import step_error
from aprune.maths.relaxation import warm_slope

seeds, temperatures = st.integers(0, 10**6), st.floats(0.1, 50)


def draw(seed: int, t_s: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Some w, the gradients ∂L/∂v there, and the warm gradients."""
    w, slope = torch.randn(
        2, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return w, slope, slope * warm_slope(w, t_s)


def test_by_hand() -> None:
    # v from σ(0) = 1/2 to σ(ln 3) = 3/4 with α = 1/2: r = slope + (1/4)/(1/2)
    w, gradient = torch.zeros(1), torch.tensor([-2.0]) * torch.log(torch.tensor(3.0))
    error = step_error(w, gradient, torch.tensor([-1.0]), alpha=0.5, t_l=1.0)
    torch.testing.assert_close(error, torch.tensor([-0.5]))


@given(seeds, temperatures, temperatures, st.floats(1e-3, 3))
def test_it_is_what_v_does_beyond_its_gradient_step(
    seed: int, t_l: float, t_s: float, alpha: float
) -> None:
    w, slope, gradient = draw(seed, t_s)
    change = torch.sigmoid(t_l * (w - alpha * gradient)) - torch.sigmoid(t_l * w)
    error = step_error(w, gradient, slope, alpha=alpha, t_l=t_l)
    torch.testing.assert_close(error, slope + change / alpha, rtol=1e-9, atol=1e-9)


@given(seeds, temperatures, temperatures, st.floats(1e-3, 10))
def test_the_lemma_holds(seed: int, t_l: float, t_s: float, alpha: float) -> None:
    w, slope, gradient = draw(seed, t_s)
    m = float(torch.maximum(w.abs(), (w - alpha * gradient).abs()).max())
    error = step_error(w, gradient, slope, alpha=alpha, t_l=t_l)
    allowed = error_constant(t_l, t_s, m) * slope.square().sum()
    assert error.square().sum() <= allowed * (1 + 1e-9)


def test_digits_are_kept_where_the_mask_is_almost_one() -> None:
    w, slope = torch.tensor([0.1]), torch.tensor([1.0])
    gradient = slope * warm_slope(w, 10.0)
    narrow = step_error(w, gradient, slope, alpha=1e-6, t_l=100.0)
    wide = step_error(w.double(), gradient.double(), slope.double(), alpha=1e-6, t_l=100.0)
    torch.testing.assert_close(1 - narrow.double(), 1 - wide, rtol=1e-3, atol=0)
    assert torch.sigmoid(100 * (w - 1e-6 * gradient)) == torch.sigmoid(
        100 * w
    )  # which says nothing


def test_no_step_is_too_long() -> None:
    w, slope = torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0])
    error = step_error(w, slope, slope, alpha=1e6, t_l=1e6)
    torch.testing.assert_close(error, slope - torch.tensor([1e-6, -1e-6]))


@pytest.mark.parametrize("steps", [100, 1_000])
@pytest.mark.parametrize(("t_l", "t_s"), [(4.0, 4.0), (100.0, 0.16)])
def test_the_counterexample_of_the_documents(steps: int, t_l: float, t_s: float) -> None:
    # f(v) = Σ v/√64 from v = 1/2: the gap is 4, and no v can be nearer than 2 after all steps
    c, w = 1 / math.sqrt(steps), torch.zeros(64, dtype=torch.float64)
    slope, gaps = torch.full_like(w, 1 / 8), []
    for i in range(1, steps + 1):
        gaps.append(float(torch.sigmoid(t_l * w).sum() / 8))
        w = w - c / math.sqrt(i) * slope * warm_slope(w, t_s)
    theorem = Theorem(t_l, t_s, c, g=1.0, m=float(w.abs().max()), r2=16.0)
    assert gaps[0] == 4
    assert gaps[-1] > 2 > 1.1 > theorem.printed(steps)
    assert sum(gaps) / steps < theorem.corrected(steps)
