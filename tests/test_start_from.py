"""`transfer` from the search's own weights: what is kept, what is drawn fresh, what is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from aprune import (
    AP,
    Architecture,
    Random,
    Recipe,
    find,
    load_task,
    search,
    transfer,
)
from aprune.errors import SettingError
from helpers import other_world

OLD = load_task("digits", classes=[0, 1, 2, 3], images=120, seed=0)
NEW = load_task("digits", classes=[5, 6, 7], images=60, seed=0)
QUICK = Recipe(steps=25, lr=0.05, batch=30)
STILL = Recipe(steps=2, lr=1.0, schedule=lambda step, steps: 0.0)  # weights end where they start


def searched(parent: Any, sparsity: float = 0.8, **more: Any) -> Any:
    return search(
        parent, OLD, AP(), sparsities=[sparsity], recipe=QUICK, weights=True, device="cpu", **more
    )


def strays(model: nn.Module, arch: Architecture) -> int:
    weights = dict(model.named_parameters())
    return sum(int(weights[n][~mask].count_nonzero()) for n, mask in arch.masks().items())


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_other_classes_get_a_fresh_head(parent: str) -> None:
    found = searched(parent)
    arch, start = found.architectures[0], found.networks[0]
    head = arch.names[-1]
    same_number = load_task("digits", classes=[4, 5, 6, 7], images=60)
    for task in (NEW, same_number):
        result = transfer(arch, parent, task, start_from=start, recipe=STILL, device="cpu")
        mine, theirs = dict(result.model.named_parameters()), dict(start.model.named_parameters())
        for name in mine:
            if name.startswith(head.removesuffix("weight")):
                assert mine[name].shape != theirs[name].shape or not torch.equal(
                    mine[name], theirs[name]
                )
            else:
                assert torch.equal(mine[name], theirs[name]), name
        assert not mine[head.replace("weight", "bias")].any()
        assert result.architecture is not None
        assert strays(result.model, result.architecture) == 0
        assert result.provenance["init"] == "start_from"


def test_the_same_classes_keep_their_head() -> None:
    found = searched("mlp")
    arch, start = found.architectures[0], found.networks[0]
    again = load_task("digits", classes=[0, 1, 2, 3], images=40, seed=7)
    result = transfer(arch, "mlp", again, start_from=start, recipe=STILL, device="cpu")
    assert all(map(torch.equal, result.model.parameters(), start.model.parameters()))


def test_other_input_channels_get_a_fresh_first_layer() -> None:
    found = searched("conv_bn")
    arch, start = found.architectures[0], found.networks[0]
    result = transfer(arch, "conv_bn", other_world(), start_from=start, recipe=STILL, device="cpu")
    assert result.model.features[0].weight.shape[1] == 3
    kept = result.model.features[3].weight
    assert torch.equal(kept, start.model.features[3].weight)


def test_weights_of_a_denser_search_are_masked() -> None:
    found = searched("mlp", sparsity=0.2)
    sparser = find("mlp", OLD, Random(), sparsity=0.9, seed=4)
    result = transfer(sparser, "mlp", NEW, start_from=found.networks[0], recipe=QUICK, device="cpu")
    assert result.architecture is not None
    assert strays(result.model, result.architecture) == 0


def test_a_head_at_the_top_of_a_network_is_fresh_too() -> None:
    class Top(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.body = nn.Parameter(torch.ones(6, 64))
            self.head = nn.Parameter(torch.ones(classes, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.flatten(1) @ self.body.T).relu() @ self.head.T

    def make(task: Any) -> nn.Module:
        return Top(task.num_classes)

    found = searched(make, sparsity=0.5)
    task = load_task("digits", classes=[4, 5, 6, 7], images=60)
    result = transfer(
        found.architectures[0],
        make,
        task,
        start_from=found.networks[0],
        recipe=STILL,
        device="cpu",
    )
    assert torch.equal(result.model.body, found.networks[0].model.body)
    assert not torch.equal(result.model.head, found.networks[0].model.head)


def test_weights_of_another_network_are_refused() -> None:
    found = searched("mlp")
    arch = find("conv", OLD, Random(), sparsity=0.5)
    with pytest.raises(SettingError, match="belong to another network"):
        transfer(arch, "conv", NEW, start_from=found.networks[0], recipe=STILL, device="cpu")


def test_own_weights_know_what_fresh_ones_do_not() -> None:
    found = searched("mlp", sparsity=0.9)
    arch, start = found.architectures[0], found.networks[0]
    kept = transfer(arch, "mlp", OLD, start_from=start, recipe=STILL, device="cpu")
    assert kept.accuracy == found.accuracy > 0.8
    for seed in range(3):
        # chance is ¼; with the numbers that the search started from it would be almost 1
        assert transfer(arch, "mlp", OLD, seed=seed, recipe=STILL, device="cpu").accuracy < 0.6
