"""Steps of w by themselves."""

import torch
from torch import Tensor

from aprune.descent import step as descent
from aprune.descent.step import Descent


def step(moved: Descent, gradient: Tensor, keep: float) -> None:
    moved.aim(0.01, keep)
    moved.w[0].grad = gradient.clone()
    moved.update()


def test_each_step_leaves_as_many_on_as_it_shall() -> None:
    w = torch.rand(1_000)
    moved = Descent([w], relative=True, gamma=None)
    for keep in (0.9, 0.8, 0.5, 0.1):
        step(moved, torch.randn(1_000), keep)
        assert abs(moved.active() - 1_000 * keep) <= 10


def test_a_step_has_no_drift_when_the_gradients_jump() -> None:
    w, gradient = torch.rand(1_000), torch.randn(1_000)
    moved = Descent([w], relative=True, gamma=None)
    for _ in range(3):
        step(moved, gradient, 0.9)
    before = w.clone()
    step(moved, 100 * gradient, 0.5)
    assert moved.active() > 850
    assert (w - before).abs().max() < 0.05  # and the gradient does not throw w far
    step(moved, gradient, 0.5)
    assert abs(moved.active() - 500) <= 10


def test_layers_move_by_their_mean_gradient_but_not_far() -> None:
    torch.manual_seed(0)
    w = [torch.rand(1_000) + 1.0 for _ in range(3)]
    noise = [torch.randn(1_000) for _ in w]
    moves = []
    for share in (0.0, 30.0):
        moved = Descent([one.clone() for one in w], relative=True, gamma=0.0, layer_share=share)
        for tensor, one, mean in zip(moved.w, noise, (0.0, -0.02, -1.0), strict=True):
            tensor.grad = one - one.mean() + mean
        moved.aim(0.01, 1.0)
        moved.update()
        moves.append([new - old for new, old in zip(moved.w, w, strict=True)])
    alone, together = moves
    rms = torch.cat(alone).div(0.01).square().mean().sqrt()
    assert torch.isclose(rms, torch.tensor(1.0), rtol=1e-3)
    root = ((2 * 999 + 999 + 1_000 * (0.02**2 + 1)) / 3_000) ** 0.5  # of the gradients, roughly
    for ours, before, expected in zip(
        together, alone, (0.0, 30 * 0.01 * 0.02 / root, 0.02), strict=True
    ):
        torch.testing.assert_close(
            ours - before, torch.full((1_000,), expected), atol=2e-5, rtol=0.03
        )


def test_what_is_beyond_minus_one_counts_as_off() -> None:
    # (w − αg)/(1 + w) would be 3 there, the largest of all
    w = torch.cat([torch.linspace(0.1, 1.0, 500), torch.full((500,), -1.5)])
    moved = Descent([w], relative=True, gamma=None)
    step(moved, torch.zeros(1_000), 0.25)
    assert abs(moved.active() - 250) <= 1


def test_a_sample_is_drawn_in_runs_of_neighbours_in_memory() -> None:
    w = torch.rand(64, 32, 3, 3).to(memory_format=torch.channels_last)
    runs = descent._sample(w, w.numel() * 1_000, seed=0)
    assert runs is not None
    indices = descent._indices(w, runs)
    offsets = sum(index * stride for index, stride in zip(indices, w.stride(), strict=True))
    assert torch.equal(offsets.view(-1, 4), runs[:, None] * 4 + torch.arange(4))
    assert len(offsets) == round(descent._SAMPLE / 1_000 / 4) * 4
