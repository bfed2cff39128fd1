"""Searches and retrainings that are stopped again and again end as if they had never been."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aprune import AP, IMP, Random, Recipe, Retraining, find, load_task, transfer, transfer_many
from aprune.errors import ApruneWarning
from aprune.finding import Found, search
from aprune.methods import METHODS, Method, find_method
from aprune.parents import vgg
from aprune.retraining import Result
from aprune.tasks import Augment, Task
from aprune.training import checkpoint, signals
from aprune.training.fused import FusedUpdate
from aprune.training.update import PlainUpdate

# mirrored and shifted, so that all random numbers of the images count
TASK = replace(load_task("digits", classes=[0, 1, 2], images=60), augment=Augment(True, 1))
QUICK = Recipe(steps=23, lr=0.05, batch=16, mixup=0.5)
KINDS = {
    "sgd": QUICK,
    "nesterov": QUICK.but(nesterov=True, schedule="hold"),
    "adam": QUICK.but(optimiser="adam", lr=0.01),
}
IMAGES = load_task("digits", classes=[0, 1, 2], images=30, size=32)


def net(task: Task) -> nn.Module:
    """All that a network may remember beside its weights: norms, and numbers for dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(task.shape[0], 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(24, task.num_classes),
    )


class Stop(BaseException):
    """What happens to a process that is killed, as far as can be seen afterwards."""


@pytest.fixture
def stopped(often: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Do something again and again, each time for a few steps, until it comes to its end."""

    def again(work: Callable[[], Any], every: int) -> Any:
        for _ in range(1000):
            left = [every]

            def moving(
                move: Callable[[Any], None], left: list[int] = left
            ) -> Callable[[Any], None]:
                def moved(self: Any) -> None:
                    move(self)
                    left[0] -= 1
                    if left[0] == 0:
                        raise Stop  # in the middle of a step: weights have moved, all else has not

                return moved

            with monkeypatch.context() as patch:
                for update in (PlainUpdate, FusedUpdate):
                    patch.setattr(update, "move", moving(update.move))
                try:
                    return work()
                except Stop:
                    continue
        raise AssertionError("it never comes to its end")

    return again


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def assert_found_same(one: Found, other: Found) -> None:
    assert one.architectures == other.architectures
    assert [dict(a.provenance) for a in one.architectures] == [
        dict(a.provenance) for a in other.architectures
    ]
    assert one.curves == other.curves
    assert (one.steps, one.accuracy) == (other.steps, other.accuracy)
    for mine, its in zip(one.networks, other.networks, strict=True):
        assert same(mine.model.state_dict(), its.model.state_dict())


def assert_results_same(one: Result, other: Result) -> None:
    assert same(one.model.state_dict(), other.model.state_dict())
    assert one.curve == other.curve
    assert one.provenance == other.provenance


@pytest.mark.parametrize("every", [2, 5, 24])
@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str, every: int, stopped: Any, tmp_path: Path) -> None:
    method = find_method(name)

    def do(place: Path | None) -> Found:
        return search(
            net,
            TASK,
            method,
            sparsities=[0.5, 0.9],
            recipe=QUICK,
            weights=method.trains,
            device="cpu",
            checkpoint=place,
        )

    assert_found_same(stopped(lambda: do(tmp_path), every), do(None))


SETTINGS: dict[str, Method] = {
    "recorded": AP(record=True),
    "paper": AP.paper(gamma=0.05, w_step=1.0),
    "parent": AP(theta_start="parent", dense_start=0.0),
    "rewound": IMP(rounds=3, rewind=4, steps=9),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_methods(name: str, kind: str, stopped: Any, tmp_path: Path) -> None:
    def do(place: Path | None) -> Found:
        return search(
            net,
            TASK,
            SETTINGS[name],
            sparsities=[0.3, 0.4],
            recipe=KINDS[kind],
            weights=True,
            device="cpu",
            checkpoint=place,
        )

    assert_found_same(stopped(lambda: do(tmp_path), 4), do(None))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg, "_WIDTHS", (4, 6, 8, 8, 8))
    monkeypatch.setattr(vgg, "_HIDDEN", 16)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("method", [AP(), IMP(rounds=2)], ids=lambda m: m.name)
@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_merged_inputs_and_fused_steps(
    method: Method, engine: Any, stopped: Any, tmp_path: Path
) -> None:
    def do(place: Path | None) -> Found:
        return search(
            "vgg11_bn",
            IMAGES,
            method,
            sparsities=[0.5, 0.8],
            recipe=Recipe(steps=10, lr=0.05, batch=8),
            weights=True,
            engine=engine,
            device="cpu",
            checkpoint=place,
        )

    assert_found_same(stopped(lambda: do(tmp_path), 4), do(None))


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
def test_retraining(kind: str, bare: bool, sparse: bool, stopped: Any, tmp_path: Path) -> None:
    found = find(net, TASK, Random(), sparsity=0.5, device="cpu") if sparse else None

    def do(place: Path | None) -> Result:
        return transfer(
            found, net, TASK, recipe=KINDS[kind], bare=bare, device="cpu", checkpoint=place
        )

    assert_results_same(stopped(lambda: do(tmp_path), 6), do(None))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_retraining_of_merged_inputs(engine: Any, stopped: Any, tmp_path: Path) -> None:
    found = find("vgg11_bn", IMAGES, Random(), sparsity=0.5, device="cpu")
    short = Recipe(steps=10, lr=0.05, batch=8)

    def do(place: Path | None) -> Result:
        return transfer(
            found, "vgg11_bn", IMAGES, recipe=short, engine=engine, device="cpu", checkpoint=place
        )

    assert_results_same(stopped(lambda: do(tmp_path), 3), do(None))


@pytest.mark.parametrize("lanes", [1, 3])
def test_many_retrainings(lanes: int, stopped: Any, tmp_path: Path) -> None:
    found = find(net, TASK, Random(), sparsity=0.5, device="cpu")
    todo = [
        Retraining(found, net, TASK, seed=seed, recipe=QUICK, checkpoint=tmp_path / str(seed))
        for seed in range(4)
    ]
    results: dict[int, Result] = {}

    def do() -> None:
        left = [r for r in todo if r.seed not in results]
        for retraining, result in transfer_many(left, lanes=lanes, device="cpu"):
            assert isinstance(result, Result)
            results[retraining.seed] = result

    stopped(do, 10)
    for retraining in todo:
        seed = retraining.seed
        assert_results_same(
            results[seed], transfer(found, net, TASK, seed=seed, recipe=QUICK, device="cpu")
        )


def test_more_steps_than_are_drawn_at_once(stopped: Any, tmp_path: Path) -> None:
    long = Recipe(steps=600, lr=0.05, batch=4, schedule="one_cycle")

    def do(place: Path | None) -> Result:
        return transfer(None, "logistic", TASK, recipe=long, device="cpu", checkpoint=place)

    assert_results_same(stopped(lambda: do(tmp_path), 131), do(None))


# Which runs are the same, and what becomes of damage.


@pytest.fixture
def begun(stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The states of a retraining that was stopped in its 13th step."""
    with monkeypatch.context() as patch:
        _stop_at(patch, 13)
        with pytest.raises(Stop):
            _retrain(tmp_path)
    assert [path.stem[-2:] for path in sorted(tmp_path.iterdir())] == ["11", "12"]
    return tmp_path


def _retrain(place: Path | None, **changes: Any) -> Result:
    settings: dict[str, Any] = {"recipe": QUICK, "seed": 0, "device": "cpu"}
    return transfer(None, net, changes.pop("task", TASK), checkpoint=place, **settings | changes)


def _stop_at(patch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Stop at the given step of the process; return a list that will hold one entry a step."""
    moved: list[int] = []
    move = PlainUpdate.move

    def moving(self: PlainUpdate) -> None:
        move(self)
        moved.append(1)
        if len(moved) == step:
            raise Stop

    patch.setattr(PlainUpdate, "move", moving)
    return moved


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each step that is done."""
    with monkeypatch.context() as patch:
        yield _stop_at(patch, 0)


def test_it_goes_on_where_it_was(begun: Path, steps: list[int]) -> None:
    result = _retrain(begun)
    assert len(steps) == 23 - 12
    assert_results_same(result, _retrain(None))
    assert len(steps) == 11 + 23
    again = _retrain(begun)  # it is done: its end is read
    assert len(steps) == 11 + 23
    assert_results_same(result, again)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"recipe": QUICK.but(lr=0.06)},
        {"bare": True},
        {"init": "he"},
        {"task": replace(TASK, train_images=255 - TASK.train_images)},
        {"task": replace(TASK, augment=Augment(False, 1))},
    ],
)
def test_another_run_is_not_taken_up(
    changes: dict[str, Any], begun: Path, steps: list[int]
) -> None:
    before = {path: path.read_bytes() for path in begun.iterdir()}
    _retrain(begun, **changes)
    assert len(steps) == 23
    assert {path: path.read_bytes() for path in before} == before


def test_a_name_is_not_enough_to_be_taken_up(begun: Path, steps: list[int]) -> None:
    """The file itself says which run it is of."""
    other = _retrain(begun, seed=1)
    names = sorted(begun.iterdir())
    mine = next(path for path in names if path.stem.endswith("12"))
    key = next(path.stem[:16] for path in names if path.stem[:16] != mine.stem[:16])
    for path in names:
        if path.stem.startswith(key):
            path.unlink()
    mine.rename(mine.with_name(mine.name.replace(mine.stem[:16], key)))
    steps.clear()
    with pytest.warns(ApruneWarning, match="damaged"):
        assert_results_same(_retrain(begun, seed=1), other)
    assert len(steps) == 23


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[-200] ^= 4
    path.write_bytes(octets)


def _flip_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'\\"step\\": 1', b'\\"step\\": 2', 1))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _become_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [_cut, _flip, _flip_header, _empty, _become_endless])
def test_damage(damage: Callable[[Path], None], begun: Path, steps: list[int]) -> None:
    _, newer = sorted(begun.iterdir())
    damage(newer)
    with pytest.warns(ApruneWarning, match="damaged") as told:
        result = _retrain(begun)
    assert len(told) == 1
    assert str(newer) in str(told[0].message)
    assert len(steps) == 23 - 11
    assert_results_same(result, _retrain(None))


def test_both_damaged(begun: Path, steps: list[int]) -> None:
    for path in begun.iterdir():
        _flip(path)
    with pytest.warns(ApruneWarning, match="damaged") as told:
        result = _retrain(begun)
    assert len(told) == 2
    assert len(steps) == 23
    assert_results_same(result, _retrain(None))


@pytest.mark.parametrize("damaged", [1, 2])
def test_damage_does_not_outlive_the_states_that_come_after_it(
    damaged: int, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused is of a later step than what is written next, and not worth more."""
    for path in sorted(begun.iterdir())[-damaged:]:
        _cut(path)
    with monkeypatch.context() as patch:
        steps = _stop_at(patch, 5)
        with pytest.warns(ApruneWarning, match="damaged") as told, pytest.raises(Stop):
            _retrain(begun)
        assert (len(steps), len(told)) == (5, damaged)
    done = (11 if damaged == 1 else 0) + 4
    names = sorted(path.stem for path in begun.iterdir())
    assert [int(name.rpartition("-")[2]) for name in names] == [done - 1, done]


def test_the_state_of_another_network_is_not_believed(begun: Path, steps: list[int]) -> None:
    """As when code behind a name was changed: the key does not know."""
    newest = sorted(begun.iterdir())[-1]
    key = newest.stem[:16]
    small = {"step": 12, "losses": torch.zeros(23), "model/weight": torch.zeros(2)}
    box = checkpoint.Checkpoint(begun, {})
    box.key = key
    box.write(0, small)
    with pytest.warns(ApruneWarning, match="damaged"):
        assert_results_same(_retrain(begun), _retrain(None))


# When states are written.


class Watch:
    """A clock that is set by hand, and a disk that takes its time."""

    def __init__(self, patch: pytest.MonkeyPatch, step: float, write: float) -> None:
        self.now, self.steps, self.written = 0.0, 0, list[int]()
        real, move = checkpoint.Checkpoint.write, PlainUpdate.move

        def writing(box: Any, training: int, state: dict[str, Any]) -> None:
            self.now += write
            self.written.append(state["step"])
            real(box, training, state)

        def moving(update: PlainUpdate) -> None:
            self.now += step
            move(update)

        patch.setattr(checkpoint.Checkpoint, "write", writing)
        patch.setattr(PlainUpdate, "move", moving)
        patch.setattr(checkpoint.time, "monotonic", lambda: self.now)


def test_states_are_some_time_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch = Watch(monkeypatch, step=6.0, write=0.2)
    _retrain(tmp_path)
    assert watch.written == [5, 10, 15, 20]  # and the end is too close to the last


def test_slow_disks_are_given_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch = Watch(monkeypatch, step=20.0, write=1.0)
    _retrain(tmp_path)
    # the first after 30 seconds, since nothing was known; then each after a hundred times its cost
    assert watch.written == [2, 7, 12, 17, 22]


class Large:
    """A training with a state of one and a half gigabytes."""

    step, done = 1, False
    size = staticmethod(lambda: 1_500_000_000)
    state = staticmethod(lambda: {"step": Large.step})


def test_the_first_state_takes_its_time_into_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it took 20 seconds on a slow disk, that would still be two hundredths."""
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    keeper: Any = checkpoint.Keeper(Large(), checkpoint.Checkpoint(tmp_path, {}))  # type: ignore[arg-type]
    for now[0], there in ((999.0, 0), (1002.0, 1)):
        keeper.look()
        assert len(list(tmp_path.iterdir())) == there


def test_what_is_short_is_not_worth_a_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watch = Watch(monkeypatch, step=0.01, write=0.2)
    _retrain(tmp_path)
    assert watch.written == []
    assert list(tmp_path.iterdir()) == []


def test_last_states_of_earlier_trainings_are_kept(stopped: Any, tmp_path: Path) -> None:
    search(
        net,
        TASK,
        IMP(rounds=3, steps=4),
        sparsities=[0.5],
        recipe=QUICK,
        device="cpu",
        checkpoint=tmp_path,
    )
    names = sorted(path.stem.partition("-")[2] for path in tmp_path.iterdir())
    assert names == ["0000-0000000004", "0001-0000000004", "0002-0000000003", "0002-0000000004"]


@pytest.mark.usefixtures("often")
def test_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last good state stays, one line is said, and the training comes to its end."""
    real = checkpoint.write_state

    def write(file: Any, key: str, state: dict[str, Any]) -> None:
        real(file, key, state)
        if state["step"] > 9:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_state", write)
        with pytest.warns(ApruneWarning, match="No space left on device") as told:
            result = _retrain(tmp_path)
    assert len(told) == 1
    assert_results_same(result, _retrain(None))
    assert [path.stem[-2:] for path in sorted(tmp_path.iterdir())] == ["08", "09"]
    assert_results_same(_retrain(tmp_path), result)


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody asked for that")

    monkeypatch.setattr(checkpoint.Checkpoint, "write", refuse)
    monkeypatch.setattr(signals.signal, "signal", refuse)
    _retrain(None)
