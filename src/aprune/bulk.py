"""`transfer_many`: retrainings by the hundred."""

import contextlib
import copy
import itertools
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from aprune.errors import TrainingError
from aprune.parents import parent_names
from aprune.progress import Clock, bar
from aprune.retraining import Ready, Result, Retraining, describe_run, judge, prepare
from aprune.tasks import Task
from aprune.training import Curve, EngineName, Recipe, choose_device, choose_engine
from aprune.training.checkpoint import Checkpoint, Keeper
from aprune.training.device import watched
from aprune.training.fit import Training
from aprune.training.masked import Lane
from aprune.training.network import Parent, network_for
from aprune.training.signals import Signals

_LOOK_EVERY = 100  # steps between two looks at the losses, each of which waits for the device
_PROBE_EVERY = 400  # steps between two looks at whether a network is alive, which take longer
_AT_A_TIME = 8  # networks to train side by side on a GPU
_LARGE = 10_000_000  # weights of a network that is busy enough with half as many beside it
_SAVED = 4  # side by side, compiled code saves so much less time than alone


def transfer_many(
    retrainings: Iterable[Retraining],
    *,
    lanes: int | None = None,
    device: str | torch.device = "auto",
    engine: EngineName = "auto",
    total: int | None = None,
    progress: bool | None = None,
    time_limit: float | None = None,
) -> Iterator[tuple[Retraining, Result | TrainingError]]:
    """Do many retrainings: those of one shape on one captured step, and several at a time.

    What comes out of one does not depend on those beside it: it is what `transfer` gives.

    Args:
        retrainings: What to do. Those that differ only in architecture, images, classes, seed, share of
            mixed images, learning rate or schedule have one shape. A list is done shape by shape. An
            iterator, such as a generator that reads architectures from files, is asked for the next
            one when there is a place for it, if `total` is given; it should give those of one shape
            one after another.
        lanes: How many of a shape to train side by side, which pays on a GPU that one alone leaves
            idle. None takes 1 on a CPU, and on a GPU 8 small networks or 4 large ones, or as many as
            its memory has room for.
        device: `auto`, `cpu` or `cuda`.
        engine: How training steps are run (see `transfer`).
        total: How many there are in all, if these are what is left of them: `auto` takes the engine that
            suits so many. Engines round differently; so an interruption makes no difference.
        progress: Whether to show a bar; None shows it on a terminal.
        time_limit: Seconds after which nothing more is started, and nothing that would probably
            last longer; several side by side last as long as one after another, until some were
            timed.

    Yields:
        Each retraining with its result, or with the error that ended it, as soon as it is done. A
        result holds a network on the device: let go of those that you do not need. They come
        shape by shape, and otherwise in the order given. What the time did not suffice for is
        missing.

    Example:
        >>> from aprune import Random, Recipe, find, load_task
        >>> old, new = load_task("digits", classes=[0, 1, 2]), load_task("digits", classes=[3, 4])
        >>> found = find("mlp", old, Random(), sparsity=[0.5, 0.9])
        >>> quick = Recipe(steps=20, lr=0.05)
        >>> todo = [Retraining(arch, "mlp", new, recipe=quick) for arch in found]
        >>> [f"{done.architecture.sparsity:.1f}" for done, _ in transfer_many(todo, device="cpu")]
        ['0.5', '0.9']
    """
    where, pace = choose_device(device), _Pace(Clock(time_limit))
    if total is None:
        retrainings = list(retrainings)
    size = len(retrainings) if isinstance(retrainings, Sequence) else total or 0
    with bar("retraining", size, show=progress) as advance:
        groups = _group(retrainings, total)
        # what there is no time for is not even asked for
        while pace.may_start(1) and (found := next(groups, None)) is not None:
            for done in _do_group(found[0], where, lanes, engine, found[1], pace):
                advance(1)
                yield done


def _group(
    retrainings: Iterable[Retraining], total: int | None
) -> Iterator[tuple[Iterator[Retraining], int]]:
    """Give those of one shape together, each time with how many to reckon with."""
    if not isinstance(retrainings, Sequence):
        for _, group in itertools.groupby(retrainings, key=_shape):
            yield group, total or 1
        return
    groups: dict[Hashable, list[Retraining]] = {}
    for retraining in retrainings:
        groups.setdefault(_shape(retraining), []).append(retraining)
    for alike in groups.values():
        yield iter(alike), total or len(alike)


def _shape(retraining: Retraining) -> Hashable:
    r = retraining
    layers = None if r.architecture is None else tuple(r.architecture.names)
    return shape_of(r.parent, layers, r.task, r.recipe, bare=r.bare)


def shape_of(
    parent: Parent, layers: Hashable, task: Task, recipe: Recipe | None, *, bare: bool
) -> Hashable:
    """Return what retrainings must have in common to share a captured step.

    Args:
        parent: That is retrained.
        layers: Which of its layers have masks, in any form.
        task: The new task.
        recipe: How it is trained.
        bare: Whether only signs are learnt.
    """
    if recipe is not None:
        mixes = float(recipe.mixup > 0)
        recipe = replace(recipe, lr=1.0, schedule="constant", mixup=mixes)
    return (
        parent if isinstance(parent, str) else id(parent),
        layers,
        (task.shape, task.num_classes, len(task.train_labels), task.augment),
        recipe,
        bare,
    )


def _do_group(
    group: Iterator[Retraining],
    where: torch.device,
    lanes: int | None,
    engine: EngineName,
    total: int,
    pace: "_Pace",
) -> Iterator[tuple[Retraining, Result | TrainingError]]:
    made: list[Lane] = []
    number = lanes
    while pace.may_start(number or 1):
        # all are asked for before any begins: whoever makes them may train something, too
        together = list(itertools.islice(group, number or 1))
        if number is None and together:
            made.append(_make_lane(together[0], where, engine, total))
            number = _count(made[0].model, where)
            together += itertools.islice(group, number - 1)
        if not together:
            return
        runs: list[_Run] = []
        with pace.timing(len(together)), contextlib.ExitStack() as stack:
            for place, retraining in enumerate(together):
                if place == len(made):
                    made.append(_make_lane(retraining, where, engine, total))
                else:
                    _renew(made[place].model, retraining, where)
                runs.append(_Run.begin(retraining, made[place], where, stack, engine))
            with watched(runs[0].ready.recipe.batch):
                _advance_all(runs)
        # outside the block the networks are whole again
        for run in runs:
            with watched(run.ready.recipe.batch):
                done = run.error or run.result()
            yield run.retraining, done


class _Pace:
    """Knows how long retrainings last, by how many are side by side, and whether there is time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._longest: dict[int, float] = {}
        self._over = False

    def may_start(self, number: int) -> bool:
        """Tell whether so many would probably be done in time; once they would not, none may start."""
        left = self._clock.left
        self._over |= left is not None and left <= self._expect(number)
        return not self._over

    def _expect(self, number: int) -> float:
        if number in self._longest:
            return self._longest[number]
        guesses = (one * max(1.0, number / known) for known, one in self._longest.items())
        return min(guesses, default=0.0)

    @contextlib.contextmanager
    def timing(self, number: int) -> Iterator[None]:
        """Remember how long the block lasts, which does so many side by side."""
        begin = time.monotonic()
        yield
        lasted = time.monotonic() - begin
        self._longest[number] = max(lasted, self._longest.get(number, 0.0))


def _make_lane(retraining: Retraining, where: torch.device, engine: EngineName, runs: int) -> Lane:
    model = _build(retraining, where)
    recipe = retraining.recipe or Recipe.for_transfer(model, retraining.task)
    level = choose_engine(engine, model, runs * recipe.steps // _SAVED)
    return Lane(model, bare=retraining.bare, engine=level)


def _build(retraining: Retraining, where: torch.device) -> nn.Module:
    r = retraining
    return network_for(r.parent, r.task, where, seed=r.seed, weights=False)


def _renew(model: nn.Module, retraining: Retraining, where: torch.device) -> None:
    """Make a trained network one that has never been trained, where it is in memory.

    The parents that aprune builds are initialised from scratch anyway. Others may hold numbers that
    fresh weights do not cover.
    """
    if retraining.parent not in parent_names():
        model.load_state_dict(_build(retraining, where).state_dict())


def _count(model: nn.Module, where: torch.device) -> int:
    """Return how many networks such as `model` to train side by side."""
    if where.type != "cuda":
        return 1
    size = sum(p.numel() for p in model.parameters())
    # weights, momenta, masks and what merged layers keep, in bytes; and room for images in between
    each = 24 * size + 2**30
    free, _ = torch.cuda.mem_get_info(where)
    most = _AT_A_TIME if size < _LARGE else _AT_A_TIME // 2
    return max(1, min(most, free // each))


@dataclass
class _Run:
    """One retraining in its lane."""

    retraining: Retraining
    ready: Ready
    lane: Lane
    placed: Task
    training: Training
    keeper: Keeper
    stream: torch.cuda.Stream | None
    curve: Curve | None = None
    error: TrainingError | None = None

    @classmethod
    def begin(
        cls,
        retraining: Retraining,
        lane: Lane,
        where: torch.device,
        stack: contextlib.ExitStack,
        engine: EngineName,
    ) -> "_Run":
        ready = prepare(retraining, lane.model)
        placed, seed = retraining.task.to(where), retraining.seed
        checkpoint = None
        if retraining.checkpoint is not None:
            about = describe_run(retraining, ready, lane.model, engine)
            checkpoint = Checkpoint(retraining.checkpoint, about)
        training = stack.enter_context(lane.run(ready.masks, placed, ready.recipe, seed=seed))
        keeper = Keeper(training, checkpoint, beside=_AT_A_TIME)
        stream = torch.cuda.Stream(where) if where.type == "cuda" else None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(where))
        run = cls(retraining, ready, lane, placed, training, keeper, stream)
        if training.done:  # it was stopped after its last step
            run.look()
        return run

    def advance(self) -> None:
        """Do one step, unless all are done or it went wrong."""
        if self.training.done or self.error is not None:
            return
        with torch.cuda.stream(self.stream), self.training.numbers.resumed():
            self.training.advance()
            self.keeper.look()
        if self.training.step % _LOOK_EVERY == 0 or self.training.done:
            self.look()

    def keep(self) -> None:
        """Write its state at once, unless it went wrong."""
        if self.error is None:
            with torch.cuda.stream(self.stream), self.training.numbers.resumed():
                self.keeper.look(now=True)

    def look(self) -> None:
        """Wait for the device, and see how it goes."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        try:
            self.training.check()
            if self.training.step % _PROBE_EVERY == 0 or self.training.done:
                self.training.warn_if_dead()
        except TrainingError as error:
            self.error = error
        if self.training.done:
            self.curve = self.training.finish()

    def result(self) -> Result:
        """Evaluate a copy of the network: its own place is for the next one."""
        assert self.curve is not None
        model = copy.deepcopy(self.lane.model)
        return judge(self.retraining, self.ready, model, self.placed, self.curve, progress=False)


def _advance_all(runs: list[_Run]) -> None:
    with Signals(active=any(run.keeper.active for run in runs)) as signals:
        while any(run.error is None and not run.training.done for run in runs):
            for run in runs:
                run.advance()
            if signals.pending:
                for run in runs:
                    run.keep()
                signals.deliver()
