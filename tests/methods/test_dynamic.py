"""SET and RigL: which connections go, which come, when, and how many."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import Recipe, find, load_task
from aprune.errors import SearchError, SettingError
from aprune.initialise import initialise
from aprune.methods import ERK, SET, RigL
from aprune.methods.dynamic import exchange
from aprune.training import Curve, Hook, fit

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=20, lr=0.1, batch=20)
Kind = type[SET | RigL]
both = pytest.mark.parametrize("kind", [SET, RigL])


def small(_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3))


class Watch(Hook):
    """Writes down masks and weights around every step, and the gradients before they are masked."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.masks: list[list[Tensor]] = []
        self.start: list[list[Tensor]] = []
        self.end: list[list[Tensor]] = []
        self.gradients: list[list[Tensor]] = []

    def before(self, step: int) -> None:
        self.masks.append([mask.bool() for mask in self.hook.masks])
        self.start.append([weight.detach().clone() for weight in self.hook.weights])

    def on_gradient(self) -> None:
        self.gradients.append([weight.grad.clone() for weight in self.hook.weights])

    def after(self, step: int) -> None:  # the exchange comes later
        self.end.append([weight.detach().clone() for weight in self.hook.weights])

    def moved(self, layer: int) -> list[int]:
        """Return how many connections went at each step."""
        return [int((old[layer] & ~new[layer]).sum()) for old, new in pairwise(self.masks)]


Spy = Callable[..., Watch]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    def search(
        method: SET | RigL, sparsity: float = 0.8, recipe: Recipe = QUICK, seed: int = 0
    ) -> Watch:
        watches: list[Watch] = []

        def watched(*args: Any, hooks: Sequence[Hook], **rest: Any) -> Curve:
            watches.append(Watch(hooks[0]))
            return fit(*args, hooks=[watches[0], *hooks], **rest)

        monkeypatch.setattr("aprune.methods.dynamic.fit", watched)
        arch = find(small, TASK, method, sparsity=sparsity, seed=seed, recipe=recipe, device="cpu")
        watches[0].masks.append([arch.mask(name) for name in arch.names])
        return watches[0]

    return search


@both
def test_layers_keep_the_numbers_of_erk_and_all_else_stays_zero(spy: Spy, kind: Kind) -> None:
    seen = spy(kind(every=3, fraction=0.5))
    drawn = find(small, TASK, ERK(), sparsity=0.8, recipe=QUICK, device="cpu")
    assert all(map(torch.equal, seen.masks[0], drawn.masks().values()))
    for masks in seen.masks:  # 268 of 1280 + 60, as 64 + 20 to 20 + 3: 210.4 and 57.6
        assert [int(mask.sum()) for mask in masks] == [210, 58]
    for masks, *around in zip(seen.masks, seen.start, seen.end, strict=False):
        assert not any(weights[k][~masks[k]].any() for weights in around for k in (0, 1))
    assert not torch.equal(seen.masks[0][0], seen.masks[-1][0])


@both
@pytest.mark.parametrize(
    ("every", "until", "steps"),
    [
        (3, 0.6, [3, 6, 9]),
        (3, 0.65, [3, 6, 9, 12]),
        (5, 1.0, [5, 10, 15]),
        (50, 1.0, []),
        (None, 0.75, [*range(1, 15)]),
    ],
)
def test_exchanges_come_every_so_often_until_they_end(
    spy: Spy, kind: Kind, every: int | None, until: float, steps: list[int]
) -> None:
    seen = spy(kind(every=every, fraction=0.5, until=until))
    assert [done for done, moved in enumerate(seen.moved(0), 1) if moved] == steps


def test_a_long_search_shares_its_steps_out_among_the_exchanges(spy: Spy) -> None:
    seen = spy(SET(), recipe=QUICK.but(steps=200))  # 150 steps in 50 parts
    assert [done for done, moved in enumerate(seen.moved(0), 1) if moved] == [*range(3, 150, 3)]


def test_set_moves_the_same_number_each_time_and_rigl_fewer_and_fewer(spy: Spy) -> None:
    constant = spy(SET(every=2, fraction=0.25, until=0.5))
    assert constant.moved(0) == [0, 52, 0, 52, 0, 52, 0, 52] + [0] * 12  # a quarter of 210
    assert constant.moved(1) == [0, 2, 0, 2, 0, 2, 0, 2] + [0] * 12  # only 2 of 60 are free
    full = spy(SET(every=2, fraction=0.25, until=0.5), sparsity=0.5)  # 670: 610 and all 60
    assert full.masks[-1][1].all()
    assert full.moved(0)[1] == 152
    assert not any(full.moved(1))
    falling = spy(RigL(every=1, fraction=0.5, until=0.75))
    half_turn = [math.pi * done / 15 for done in range(1, 15)]
    assert falling.moved(0) == [int(105 * (1 + math.cos(x)) / 2) for x in half_turn] + [0] * 6
    assert falling.moved(0)[4] == 78  # a third of the way: 105·(1 + ½)/2


@both
def test_the_smallest_go_and_what_comes_starts_at_zero(spy: Spy, kind: Kind) -> None:
    seen = spy(kind(every=4, fraction=0.3, until=0.9))
    for step in (3, 7, 11, 15):
        old, new = seen.masks[step][0], seen.masks[step + 1][0]
        size, slope = seen.end[step][0].abs(), seen.gradients[step][0].abs()
        assert size[old & ~new].max() <= size[old & new].min()
        came = new & ~old
        assert int(came.sum()) == int((old & ~new).sum()) > 0
        assert bool(slope[came].min() > slope[~old & ~new].max()) == (kind is RigL)
        assert not seen.start[step + 1][0][came].any()
        assert seen.end[step + 1][0][came].any()  # from then on they are trained
        assert torch.equal(seen.start[step + 1][0][old & new], seen.end[step][0][old & new])


@both
def test_fresh_weights_fit_the_first_mask(spy: Spy, kind: Kind) -> None:
    seen = spy(kind(), seed=7)
    fresh = small(TASK)
    initialise(fresh, dict(zip(["1.weight", "3.weight"], seen.masks[0], strict=True)), seed=7)
    for weight, name in zip(seen.start[0], ("1.weight", "3.weight"), strict=True):
        assert torch.equal(weight, fresh.get_parameter(name))


def test_a_seed_draws_what_comes_in(spy: Spy) -> None:
    one, again, other = (spy(SET(), seed=seed).hook.generator for seed in (1, 1, 2))
    assert one.initial_seed() == again.initial_seed() != other.initial_seed()


@both
def test_gradients_that_are_not_finite_end_the_search(kind: Kind) -> None:
    absurd = QUICK.but(lr=1e30, clip=None)
    with pytest.raises(SearchError, match=r"a gradient is not finite at step \d+ of 20: try a"):
        find(small, TASK, kind(every=1), sparsity=0.5, recipe=absurd, device="cpu")


@both
def test_each_sparsity_is_searched_for_from_the_start(kind: Kind) -> None:
    one, two = (
        find(small, TASK, kind(every=3), sparsity=sparsity, recipe=QUICK, device="cpu")
        for sparsity in ([0.5, 0.8], [0.8])
    )
    assert one[1] == two[0]


def steepest(weight: Tensor, mask: Tensor, gradient: Tensor, fraction: float) -> list[int]:
    """Exchange as RigL does; return the places of what is there afterwards."""
    after = exchange(weight, mask, gradient, fraction, lambda g, _: g.abs(), torch.Generator())
    return after.flatten().nonzero().flatten().tolist()


def test_an_exchange_by_hand() -> None:
    weight = torch.tensor([[3.0, -1.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 4, [False] * 4])
    gradient = torch.tensor([[9.0, 9.0, 9.0, 9.0], [1.0, -4.0, 2.0, 3.0]])
    # −1 and 0.5 go, and may not come straight back for all their 9; −4 and 3 come
    assert steepest(weight, mask, gradient, 0.5) == [0, 2, 5, 7]
    assert steepest(weight, mask, gradient, 0.49) == [0, 1, 2, 5]  # 1.96 is one
    assert steepest(weight, mask, gradient, 0.24) == [0, 1, 2, 3]  # 0.96 is none
    # what has come with a weight of zero is there all the same
    assert steepest(weight * 0, ~mask, gradient, 0.25) == [0, 4, 5, 6]
    # of seven only one has somewhere to go
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    assert steepest(weight + 9, mask, gradient, 0.9) == [0, 2, 3, 4, 5, 6, 7]


def test_set_brings_each_of_the_others_equally_often() -> None:
    weight = torch.tensor([4.0, 3.0, 2.0, 1.0] + [0.0] * 8)
    gradient = torch.arange(12.0) ** 3
    generator, draws = torch.Generator().manual_seed(0), 1200
    hits = torch.zeros(12)
    for _ in range(draws):
        hits += exchange(weight, weight != 0, gradient, 0.5, SET().grow, generator)
    assert hits[:4].tolist() == [draws, draws, 0, 0]
    # two of eight each time: 300 on average, with a standard deviation of √(1200·¼·¾) = 15
    assert (hits[4:] - 300).abs().max() < 4 * 15


@both
@pytest.mark.parametrize(
    ("setting", "values", "expected"),
    [
        ("every", [0, -1, 1.5], "a whole number from 1 on"),
        ("fraction", [0.0, 1.0, -0.1, math.nan], "a number between 0 and 1"),
        ("until", [0.0, 1.1, math.nan], "a number above 0, and 1 at most"),
    ],
)
def test_bad_settings_are_refused(
    kind: Kind, setting: str, values: list[float], expected: str
) -> None:
    for value in values:
        with pytest.raises(SettingError, match=f"{setting} is {value}: expected {expected}"):
            kind(**{setting: value})
