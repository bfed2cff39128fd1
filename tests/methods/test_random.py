"""Random connections: how many, where, and how evenly."""

import pytest
import torch

from aprune import Random, find, load_task
from aprune.errors import SettingError

TASK = load_task("digits", classes=[0, 1, 2], images=30, seed=0)


def densities(spread: str, seed: int) -> list[float]:
    arch = find("conv", TASK, Random(spread), sparsity=0.9, seed=seed)
    return [layer.density for layer in arch.layers()]


def test_every_layer_has_the_same_density() -> None:
    for sparsity in (0.5, 0.9, 0.99):
        arch = find("conv", TASK, Random(), sparsity=sparsity)
        for layer in arch.layers():
            assert abs(layer.kept - layer.total * (1 - sparsity)) < 1.01


def test_a_global_draw_lets_densities_vary_by_chance() -> None:
    drawn = torch.tensor([densities("global", seed) for seed in range(20)])
    sizes = torch.tensor([288.0, 18432.0, 36864.0, 768.0])
    # the deviation of a proportion: √(p·(1 − p)/n), almost
    expected = (0.09 / sizes).sqrt()
    assert torch.allclose(drawn.mean(0), torch.full((4,), 0.1), atol=0.02)
    assert bool((drawn.std(0)[[0, 3]] > 0.5 * expected[[0, 3]]).all())
    assert bool((drawn.std(0)[[0, 3]] < 2.0 * expected[[0, 3]]).all())
    assert torch.tensor([densities("layer", seed) for seed in range(3)]).std(0).max() == 0


@pytest.mark.parametrize("spread", ["layer", "global"])
def test_every_place_is_equally_likely(spread: str) -> None:
    masks = [
        find("logistic", TASK, Random(spread), sparsity=0.75, seed=seed).mask("fc.weight")
        for seed in range(200)
    ]
    often = torch.stack(masks).float().mean(0)
    # five deviations of a frequency around ¼
    assert (often - 0.25).abs().max() < 5 * (0.25 * 0.75 / 200) ** 0.5
    assert torch.stack(masks).sum((1, 2)).unique().tolist() == [48]


def test_an_unknown_spread_is_refused() -> None:
    with pytest.raises(SettingError, match="spread is 'unit': expected layer or global"):
        Random("unit")  # type: ignore[arg-type]
