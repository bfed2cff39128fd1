"""Many retrainings: each gives what it gives alone, whatever trains beside it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import aprune.parents.vgg
from aprune import (
    Random,
    Recipe,
    Result,
    Retraining,
    bulk,
    find,
    load_task,
    transfer,
    transfer_many,
)
from aprune.bulk import _count, _Pace
from aprune.errors import TrainingError
from aprune.progress import Clock
from aprune.tasks import Task
from helpers import other_world

QUICK = Recipe(steps=7, lr=0.1, batch=16)
OLD = load_task("digits", classes=[0, 1, 2])


def new(seed: int, images: int = 30) -> Task:
    return load_task("digits", classes=3, images=images, seed=seed)


def several(parent: str = "conv_bn") -> list[Retraining]:
    """Two shapes, mixed; within a shape all that may differ does."""
    found = [find(parent, OLD, Random(), sparsity=s, seed=i) for i, s in enumerate((0.5, 0.8))]
    return [
        Retraining(found[0], parent, new(0), seed=0, recipe=QUICK),
        Retraining(None, parent, new(1), seed=1, recipe=QUICK),
        Retraining(found[1], parent, new(2), seed=2, recipe=QUICK.but(lr=0.02)),
        Retraining(found[1], parent, new(3), seed=3, recipe=QUICK.but(schedule="hold")),
        Retraining(None, parent, new(4), seed=4, recipe=QUICK),
    ]


def alone(retraining: Retraining) -> Result:
    r = retraining
    return transfer(
        r.architecture,
        r.parent,
        r.task,
        seed=r.seed,
        recipe=r.recipe,
        init=r.init,
        start_from=r.start_from,
        bare=r.bare,
        device="cpu",
    )


def assert_same(ours: Result | TrainingError, theirs: Result) -> None:
    assert isinstance(ours, Result)
    assert ours.curve == theirs.curve
    assert ours.accuracy == theirs.accuracy
    assert ours.provenance == theirs.provenance
    assert ours.architecture == theirs.architecture
    other = theirs.model.state_dict()
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_each_is_what_it_is_alone(lanes: int) -> None:
    todo = several()
    done = list(transfer_many(todo, lanes=lanes, device="cpu"))
    # shape by shape: the sparse ones, then the dense ones
    assert [retraining.seed for retraining, _ in done] == [0, 2, 3, 1, 4]
    for retraining, result in done:
        assert_same(result, alone(retraining))


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_bare_ones_have_lanes_of_their_own(lanes: int) -> None:
    todo = [replace(retraining, bare=bare) for retraining in several() for bare in (False, True)]
    done = list(transfer_many(todo, lanes=lanes, device="cpu"))
    assert [(r.seed, r.bare) for r, _ in done] == [
        (seed, bare) for seeds in ((0, 2, 3), (1, 4)) for bare in (False, True) for seed in seeds
    ]
    for retraining, result in done:
        assert_same(result, alone(retraining))
        weight = result.model.features[0].weight  # type: ignore[union-attr]
        assert (len(weight[weight != 0].abs().unique()) == 1) is retraining.bare


@pytest.mark.parametrize(("optimiser", "bare"), [("sgd", False), ("adam", False), ("sgd", True)])
def test_networks_with_dropout_and_merged_inputs(
    monkeypatch: pytest.MonkeyPatch, optimiser: str, bare: bool
) -> None:
    monkeypatch.setattr(aprune.parents.vgg, "_WIDTHS", (4, 4, 8, 8, 8))
    monkeypatch.setattr(aprune.parents.vgg, "_HIDDEN", 16)
    task = other_world(channels=1, size=32, classes=3)
    recipe = QUICK.but(steps=3, optimiser=optimiser, lr=0.01)
    found = [find("vgg11", task, Random(), sparsity=0.5, seed=seed) for seed in range(3)]
    todo = [
        Retraining(arch, "vgg11", task, seed=seed, recipe=recipe, bare=bare)
        for seed, arch in enumerate(found)
    ]
    before = torch.get_rng_state()
    for retraining, result in transfer_many(todo, lanes=2, device="cpu"):
        assert_same(result, alone(retraining))
    assert torch.equal(torch.get_rng_state(), before)


def test_tasks_and_earlier_results_are_left_as_they_are() -> None:
    todo = [r for r in several("mlp") if r.architecture is not None]
    images = [retraining.task.train_images.clone() for retraining in todo]
    states = []
    results = []
    for _, result in transfer_many(todo, device="cpu"):
        assert isinstance(result, Result)
        results.append(result)
        states.append({name: v.clone() for name, v in result.model.state_dict().items()})
    for retraining, before in zip(todo, images, strict=True):
        assert torch.equal(retraining.task.train_images, before)
    for result, state in zip(results, states, strict=True):
        assert all(torch.equal(v, state[name]) for name, v in result.model.state_dict().items())


@pytest.mark.parametrize("bare", [False, True])
def test_one_that_diverges_harms_no_other(bare: bool) -> None:
    found = find("mlp", OLD, Random(), sparsity=0.5)
    wild = replace(QUICK, lr=1e30, clip=None, schedule="constant")
    calm = replace(wild, lr=0.05)
    todo = [
        Retraining(found, "mlp", new(0), seed=seed, recipe=recipe, bare=bare)
        for seed, recipe in enumerate((calm, wild, calm, calm))
    ]
    done = list(transfer_many(todo, lanes=3, device="cpu"))
    assert isinstance(done[1][1], TrainingError)
    assert "the loss is" in str(done[1][1])
    for place in (0, 2, 3):
        assert_same(done[place][1], alone(todo[place]))


class Scaled(nn.Module):
    """A network with a number that fresh weights do not cover."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * self.layer(images.flatten(1))


def test_networks_of_ones_own_begin_anew() -> None:
    parent = Scaled()
    found = find(parent, new(0), Random(), sparsity=0.5)
    todo = [Retraining(found, parent, new(0), seed=seed, recipe=QUICK) for seed in range(2)]
    for retraining, result in transfer_many(todo, device="cpu"):
        assert_same(result, alone(retraining))
    assert parent.scale.item() == 2.0


def test_nothing_to_do_is_nothing_done() -> None:
    assert list(transfer_many([], device="cpu")) == []


def test_what_an_iterator_takes_is_not_the_length_of_a_retraining(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, paces = [0.0], []

    class Noted(_Pace):
        def __init__(self, clock: Clock) -> None:
            super().__init__(clock)
            paces.append(self)

    def give() -> Iterator[Retraining]:
        for retraining in several("mlp")[2:4]:
            now[0] += 1_000.0  # as it would to search once more
            yield retraining

    monkeypatch.setattr(bulk, "_Pace", Noted)
    monkeypatch.setattr(bulk.time, "monotonic", lambda: now[0])
    assert len(list(transfer_many(give(), lanes=1, total=2, device="cpu"))) == 2
    assert paces[0]._longest == {1: 0.0}


def test_several_are_expected_to_last_longer_than_one() -> None:
    for limit, number, starts in (
        (100.0, 1, True),
        (11.0, 1, True),
        (11.0, 4, False),
        (50.0, 4, True),
    ):
        pace = _Pace(Clock(limit))
        pace._longest[1] = 10.0
        assert pace.may_start(number) is starts
    pace._longest[4] = 15.0  # what was timed is known better, and fewer last no longer
    assert pace.may_start(4)
    assert pace._expect(2) == 15.0
    assert pace._expect(8) == 30.0
    assert not _Pace(Clock(0.0)).may_start(1)
    tired = _Pace(Clock(20.0))
    tired._longest[1] = 10.0
    assert tired.may_start(1)
    assert not tired.may_start(4)
    assert not tired.may_start(1)  # or the rest of a group would be asked for, and left
    assert _Pace(Clock(None)).may_start(1_000)


@pytest.mark.parametrize(
    ("free", "small", "large"),
    [(100 * 2**30, 8, 4), (20 * 2**30, 8, 4), (4 * 2**30, 3, 1), (2**20, 1, 1)],
)
def test_as_many_side_by_side_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, free: int, small: int, large: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 141 * 2**30))
    with torch.device("meta"):
        networks = nn.Linear(100, 100), nn.Linear(10_000, 14_000)
    gpu = torch.device("cuda")
    assert [_count(network, gpu) for network in networks] == [small, large]
    assert _count(networks[0], torch.device("cpu")) == 1


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_iterator_is_asked_for_the_next_when_there_is_a_place(lanes: int) -> None:
    todo = [retraining for retraining in several("mlp") if retraining.architecture is not None]
    asked: list[int] = []

    def give() -> Iterator[Retraining]:
        for retraining in todo:
            asked.append(retraining.seed)
            yield retraining

    many = transfer_many(give(), lanes=lanes, total=len(todo), device="cpu")
    retraining, result = next(many)
    assert asked == [0, 2][:lanes]
    assert_same(result, alone(retraining))
    assert [one.seed for one, _ in many] == [2, 3]


def test_an_iterator_may_change_shape_and_is_left_alone_when_time_is_up() -> None:
    todo = several("mlp")  # sparse, dense, sparse, sparse, dense
    done = list(transfer_many(iter(todo), lanes=2, total=5, device="cpu"))
    assert [retraining.seed for retraining, _ in done] == [0, 1, 2, 3, 4]
    for retraining, result in done:
        assert_same(result, alone(retraining))

    def refuse() -> Iterator[Retraining]:
        pytest.fail("there is no time")
        yield todo[0]

    assert list(transfer_many(refuse(), total=5, time_limit=0.0, device="cpu")) == []
    # without a number it is read like a list
    assert [r.seed for r, _ in transfer_many(iter(todo), device="cpu")] == [0, 2, 3, 1, 4]
