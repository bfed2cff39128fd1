"""Iterative magnitude pruning: a small case by hand, the rewinding, the rounds."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aprune.methods.imp
from aprune import IMP, Recipe, find, load_task
from aprune.errors import SearchError, SettingError
from aprune.finding import search
from aprune.methods.protocol import Masks
from aprune.tasks import Task
from aprune.training import Curve, Hook
from aprune.training.engine import Level
from aprune.training.masked import Lane

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=15, lr=0.05, batch=20)

State = dict[str, Tensor]


def copy_of(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_a_small_case_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # "Training" puts these numbers into the eight weights, whatever the hooks say.
    trained = iter(
        [
            ([1.0, -8.0, 3.0, -4.0], [7.0, 2.0, -6.0, 5.0]),
            # whatever was removed in the first round stays so, even at 9
            ([9.0, 1.0, 9.0, 9.0], [-2.0, 9.0, 4.0, 3.0]),
        ]
    )

    class Pretend(Lane):
        def fit(self, *_: Any, **__: Any) -> Curve:
            with torch.no_grad():
                for layer, values in zip(self.model[1:], next(trained), strict=True):
                    layer.weight.view(-1).copy_(torch.tensor(values))
            return Curve((1.0,))

    monkeypatch.setattr(aprune.methods.imp, "Lane", Pretend)
    # four pixels, one unit, four classes
    pixels = torch.arange(16, dtype=torch.uint8).view(4, 1, 2, 2)
    task = Task(
        "tiny", pixels, torch.arange(4), pixels, torch.arange(4), tuple("abcd"), TASK.augment, {}
    )

    def small(_: object) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False))

    half, three_quarters = find(
        small, task, IMP(rounds=2), sparsity=[0.5, 0.75], recipe=QUICK, device="cpu"
    )
    assert half.mask("1.weight").tolist() == [[False, True, False, False]]
    assert half.mask("2.weight").flatten().tolist() == [True, False, True, True]
    # of |1|, |−2|, |4|, |3| the two largest
    assert three_quarters.mask("1.weight").tolist() == [[False, False, False, False]]
    assert three_quarters.mask("2.weight").flatten().tolist() == [False, False, True, True]


class Watch(Hook):
    """Copies the network before the first step and after another one."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.model, self.step, self.start, self.later = model, step, {}, {}

    def before(self, step: int) -> None:
        if step == 0:
            self.start = copy_of(self.model)

    def after(self, step: int) -> None:
        if step == self.step:
            self.later = copy_of(self.model)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[dict[str, Any]]]:
    """Write down the network at the start of every round, after `step` steps, and at its end."""

    def watch(step: int) -> list[dict[str, Any]]:
        rounds: list[dict[str, Any]] = []

        class Watched(Lane):
            def __init__(
                self, model: nn.Module, *, hooks: Sequence[Hook] = (), engine: Level
            ) -> None:
                self.watch = Watch(model, step - 1)
                super().__init__(model, hooks=[*hooks, self.watch], engine=engine)

            def fit(self, masks: Masks, *args: Any, **rest: Any) -> Curve:
                curve = super().fit(masks, *args, **rest)
                rounds.append(
                    {
                        "start": self.watch.start,
                        "later": self.watch.later,
                        "end": copy_of(self.model),
                        "kept": sum(int(mask.sum()) for mask in masks.values()),
                        "steps": len(curve.loss),
                        "seed": rest["seed"],
                    }
                )
                return curve

        monkeypatch.setattr(aprune.methods.imp, "Lane", Watched)
        return rounds

    return watch


@pytest.mark.parametrize("rewind", [0, 4])
@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_weights_go_back_to_where_they_were(
    spy: Callable[[int], list[dict[str, Any]]], rewind: int, parent: str
) -> None:
    rounds = spy(rewind)
    find(
        parent,
        TASK,
        IMP(rounds=3, rewind=rewind, steps=15),
        sparsity=0.9,
        recipe=QUICK,
        device="cpu",
    )
    origin = rounds[0]["start"] if rewind == 0 else rounds[0]["later"]
    assert len(rounds) == 3
    for later in rounds[1:]:
        for name, value in later["start"].items():
            if name.endswith("weight") and value.dim() > 1:
                # as at the origin where the connection is left, zero where it is gone
                assert torch.equal(value, torch.where(value != 0, origin[name], 0.0)), name
                assert int(value.count_nonzero()) < value.numel()
            else:
                assert torch.equal(value, origin[name]), name
    changed = [not torch.equal(rounds[0]["end"][name], origin[name]) for name in origin]
    assert all(changed)


def test_each_round_removes_the_same_fraction_and_costs_the_same(
    spy: Callable[[int], list[dict[str, Any]]],
) -> None:
    rounds = spy(0)
    found = search(
        "mlp", TASK, IMP(rounds=4, steps=7), sparsities=[1 - 0.5**4], recipe=QUICK, device="cpu"
    )
    total = found.architectures[0].total
    assert [r["kept"] for r in rounds] == [total, total // 2, total // 4, total // 8]
    assert found.architectures[0].kept == total // 16
    assert [r["steps"] for r in rounds] == [7] * 4
    assert found.steps == 28
    assert [r["seed"] for r in rounds] == [0] * 4  # the same images in the same order
    assert found.accuracy is None  # the network has gone back to its start


def test_the_rounds_share_the_steps_unless_told_otherwise(
    spy: Callable[[int], list[dict[str, Any]]],
) -> None:
    rounds = spy(0)
    find("mlp", TASK, IMP(rounds=4), sparsity=0.5, recipe=QUICK, device="cpu")
    assert [r["steps"] for r in rounds] == [3] * 4  # 15 // 4


def test_masks_are_nested() -> None:
    sparsities = [0.2, 0.5, 0.6, 0.9, 0.95]
    found = find("mlp", TASK, IMP(rounds=3), sparsity=sparsities, recipe=QUICK, device="cpu")
    for larger, smaller in pairwise(found):
        assert smaller.overlap(larger).of_first == 1.0


def test_one_round_keeps_the_largest_trained_weights(
    spy: Callable[[int], list[dict[str, Any]]],
) -> None:
    rounds = spy(0)
    arch = find("mlp", TASK, IMP(rounds=1), sparsity=0.9, recipe=QUICK, device="cpu")
    sizes = {name: rounds[0]["end"][name].abs() for name in arch.names}
    left = torch.cat([sizes[name][arch.mask(name)] for name in arch.names])
    gone = torch.cat([sizes[name][~arch.mask(name)] for name in arch.names])
    assert left.min() >= gone.max()
    # over all layers together: their densities differ
    assert len({layer.density for layer in arch.layers()}) == 3


def test_bad_settings_are_refused() -> None:
    for setting, value, least in (
        ("rounds", 0, 1),
        ("rounds", 2.5, 1),
        ("rewind", -1, 0),
        ("rewind", 1.5, 0),
        ("steps", 0, 1),
        ("steps", 2.5, 1),
    ):
        expected = f"{setting} is {value}: expected a whole number from {least} on"
        with pytest.raises(SettingError, match=expected):
            IMP(**{setting: value})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="rewind is step 15, but a round has only 15 steps"):
        find("mlp", TASK, IMP(rewind=15, steps=15), sparsity=0.5, recipe=QUICK, device="cpu")
    with pytest.raises(SettingError, match="rewind is step 3, but a round has only 3 steps"):
        find("mlp", TASK, IMP(rewind=3, rounds=5), sparsity=0.5, recipe=QUICK, device="cpu")


def test_a_training_that_diverges_gives_no_mask() -> None:
    absurd = Recipe(steps=50, lr=1e30, clip=None)
    with pytest.raises(SearchError, match=r"the search died: .* at step \d+ of 10"):
        find("mlp", TASK, IMP(), sparsity=0.5, recipe=absurd, device="cpu")
