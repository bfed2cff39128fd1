"""SynFlow: a small case by hand, the conservation of flow, the rounds, and no image."""

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aprune.methods.synflow
from aprune import find, load_task
from aprune.errors import SettingError
from aprune.methods import SynFlow
from aprune.methods.protocol import Masks
from helpers import other_world

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
TWO_PIXELS = other_world(channels=2, size=1, classes=2)

Scores = dict[str, Tensor]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Scores]:
    rounds: list[Scores] = []
    real = aprune.methods.synflow.shrink

    def shrink(masks: Mapping[str, Tensor], scores: Scores, kept: int) -> Masks:
        rounds.append(scores)
        return real(masks, scores, kept)

    monkeypatch.setattr(aprune.methods.synflow, "shrink", shrink)
    return rounds


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    def initialise(model: nn.Sequential, **_: Any) -> None:
        model[1].weight.data = torch.tensor([[6.0, -1.0], [1.0, -3.0]])
        model[3].weight.data = torch.tensor([[1.0, -2.0], [2.0, 3.0]])

    monkeypatch.setattr(aprune.methods.synflow, "initialise", initialise)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)
    )


def test_a_score_is_the_sum_over_the_paths_through_a_connection(
    by_hand: nn.Module, seen: list[Scores]
) -> None:
    arch = find(by_hand, TWO_PIXELS, SynFlow(rounds=1), sparsity=0.75, device="cpu")
    # 6·(1 + 2), 1·(1 + 2); 1·(2 + 3), 3·(2 + 3)
    assert seen[0]["1.weight"].tolist() == [[18, 3], [5, 15]]
    # 1·(6 + 1), 2·(1 + 3); 2·(6 + 1), 3·(1 + 3)
    assert seen[0]["3.weight"].tolist() == [[7, 8], [14, 12]]
    # 18 and 15 are the largest: nothing goes through the second layer any more
    assert arch.mask("1.weight").tolist() == [[True, False], [False, True]]
    assert not arch.mask("3.weight").any()


def test_weights_that_are_not_chosen_from_are_magnitudes_too(
    by_hand: nn.Module, seen: list[Scores]
) -> None:
    find(by_hand, TWO_PIXELS, SynFlow(rounds=1), sparsity=0.5, exclude="3.*", device="cpu")
    assert seen[0]["1.weight"].tolist() == [[18, 3], [5, 15]]


def test_the_second_round_scores_what_the_first_has_left(
    by_hand: nn.Module, seen: list[Scores]
) -> None:
    half, quarter = find(by_hand, TWO_PIXELS, SynFlow(rounds=2), sparsity=[0.5, 0.75], device="cpu")
    # of 18, 15, 14 and 12 there are left two paths, 6·2 and 3·3
    assert half.mask("1.weight").tolist() == [[True, False], [False, True]]
    assert half.mask("3.weight").tolist() == [[False, False], [True, True]]
    assert seen[-1]["1.weight"].tolist() == [[12, 0], [0, 9]]
    assert seen[-1]["3.weight"].tolist() == [[0, 0], [12, 9]]
    assert quarter.mask("1.weight").tolist() == [[True, False], [False, False]]
    assert quarter.mask("3.weight").tolist() == [[False, False], [True, False]]


# fresh biases are zero, and fresh norms do next to nothing
@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_every_layer_has_the_same_flow_in_every_round(parent: str, seen: list[Scores]) -> None:
    find(parent, TASK, SynFlow(rounds=5), sparsity=0.9, device="cpu")
    flows = torch.tensor([[score.sum() for score in scores.values()] for scores in seen])
    assert len(flows) == 6  # the one sparsity is taken in the last of the five rounds
    assert torch.allclose(flows, flows[:, :1].expand_as(flows), rtol=1e-6)
    assert flows[-1, 0] < flows[0, 0]


@pytest.mark.parametrize(("parent", "sparsity"), [("mlp", 0.999), ("conv", 0.99)])
def test_rounds_leave_something_in_every_layer_where_one_does_not(
    parent: str, sparsity: float
) -> None:
    archs = [
        find(parent, TASK, SynFlow(rounds), sparsity=sparsity, device="cpu") for rounds in (1, 30)
    ]
    once, often = ([layer.kept for layer in arch.layers()] for arch in archs)
    assert min(once) == 0
    # the same flow goes through all layers, so none is much thinner than another
    assert min(often) > 0.5 * max(often)


def test_images_are_not_looked_at() -> None:
    flipped = dataclasses.replace(
        TASK, train_images=255 - TASK.train_images, train_labels=TASK.train_labels.flip(0)
    )
    one, other = (
        find("conv_bn", task, SynFlow(rounds=5), sparsity=0.9, device="cpu")
        for task in (TASK, flipped)
    )
    assert one == other


def test_a_flow_beyond_32_bits_is_no_harm(seen: list[Scores]) -> None:
    layers = [nn.Linear(64, 64, bias=False) for _ in range(45)]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 3, bias=False))
    arch = find(model, TASK, SynFlow(rounds=3), sparsity=0.9, device="cpu")
    flows = [torch.stack([score.sum() for score in scores.values()]) for scores in seen]
    assert flows[0].min() > torch.finfo(torch.float32).max
    for flow in flows:
        assert bool(flow.isfinite().all())
        assert torch.allclose(flow, flow[0])
    assert min(layer.kept for layer in arch.layers()) > 0


def test_masks_are_nested_even_where_nothing_flows() -> None:
    # the first round removes 99%, and of what is left much leads nowhere: its score is zero as well
    sparsities = [0.5, 0.9, 0.9899, 0.9901, 0.995, 0.9999]
    found = find("mlp", TASK, SynFlow(rounds=2), sparsity=sparsities, device="cpu")
    for larger, smaller in pairwise(found):
        assert smaller.overlap(larger).of_first == 1.0


def test_a_sparsity_that_a_round_misses_by_rounding_is_taken_there() -> None:
    # half of the rounds to 0.99 lead to 0.9, but for the last digit
    task = load_task("digits", classes=[0, 1])
    way = find("mlp", task, SynFlow(rounds=4), sparsity=[0.9, 0.99], seed=1, device="cpu")
    alone = find("mlp", task, SynFlow(rounds=2), sparsity=0.9, seed=1, device="cpu")
    assert way[0] == alone


def test_bad_settings_are_refused() -> None:
    for rounds in (0, -1, 1.5, "3"):
        with pytest.raises(SettingError, match=f"rounds is {rounds!r}: expected a whole number"):
            SynFlow(rounds=rounds)  # type: ignore[arg-type]
