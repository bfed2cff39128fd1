"""The training loop: one for searches, pruning rounds and retrainings.

What differs between them comes as hooks, which it calls at fixed places and otherwise knows
nothing about.
"""

import itertools
import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from aprune.errors import NetworkWarning, TrainingError
from aprune.initialise import RandomNumbers
from aprune.maths.schedules import find_schedule
from aprune.progress import bar
from aprune.tasks import Task
from aprune.training.batch import BLOCK, draw_blocks
from aprune.training.checkpoint import Keeper
from aprune.training.engine import Engine, Level, compile_network
from aprune.training.evaluate import gives_one_output
from aprune.training.hook import Hook
from aprune.training.loop import Loop
from aprune.training.ranks import current_team
from aprune.training.recipe import Recipe
from aprune.training.signals import Signals
from aprune.training.state import (
    State,
    check_alike,
    check_same,
    is_finite,
    part_of,
    with_prefix,
)
from aprune.training.update import PlainUpdate, Update
from aprune.training.whole_batch import whole_batches

_LOOK_EVERY = 25  # steps between two looks at the loss, each of which waits for the device
_PROBES = 10  # looks at whether the network is still alive,
_SETTLED = 50  # from this step on: running statistics of norms must have come about
_SEEN = 64  # images that it is shown for that
_WILD = 10  # times the loss of guessing, in the end: nobody has that who learns
_COMPARE_EVERY = 500  # steps after which processes that train together compare what they hold


@dataclass(frozen=True)
class Curve:
    """The training loss of every step."""

    loss: tuple[float, ...]

    def final(self, steps: int = 50) -> float:
        """Return the mean loss of the last `steps` steps."""
        tail = self.loss[-steps:]
        return sum(tail) / len(tail)

    def thinned(self, points: int = 100) -> list[float]:
        """Return the means of as many equal stretches of steps, in order.

        Example:
            >>> Curve((4.0, 2.0, 1.0, 1.0)).thinned(2)
            [3.0, 1.0]
        """
        number = min(points, len(self.loss))
        ends = [round(len(self.loss) * part / number) for part in range(number + 1)]
        return [
            sum(self.loss[first:last]) / (last - first) for first, last in itertools.pairwise(ends)
        ]


def fit(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    hooks: Sequence[Hook] = (),
    update: Update | None = None,
    engine: Level = "captured",
    title: str = "training",
    progress: bool | None = None,
) -> Curve:
    """Train `model` in place on the training images of `task`.

    Args:
        model: The network, on the device of the task's tensors.
        task: Where images and labels come from.
        recipe: Steps, batch size, learning rate and so on.
        seed: Of the order of images, their shifts and mirrors, and of dropout.
        hooks: Called around every step.
        update: What moves the weights; None leaves that to PyTorch's optimisers.
        engine: How a step is run (see `training.engine`); on a CPU always eagerly.
        title: Of the progress bar.
        progress: Whether to show one; None shows it on a terminal.

    Raises:
        TrainingError: The loss is not finite; the message names the step.
    """
    training = Training(model, task, recipe, hooks=hooks, update=update, engine=engine)
    training.start(task, recipe, seed=seed)
    return training.run(title, progress)


class Training:
    """A training in progress, done one step at a time.

    All that a step touches stays where it is in memory. So it can `start` again, with other weights,
    images or masks of the same shapes put in place, and what was captured serves them too.

    The arguments are those of `fit`; a later start may have another learning rate and schedule.

    Attributes:
        step: The number of the coming step.
        numbers: Random numbers for dropout and the like; steps are to be done with them `resumed`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        hooks: Sequence[Hook] = (),
        update: Update | None = None,
        engine: Level = "captured",
    ) -> None:
        self._hooks = hooks
        self._model = model
        self._team = current_team()
        network = compile_network(model) if engine == "compiled" else model
        update = update or PlainUpdate(model, recipe)
        self._loop = Loop(network, task, recipe, hooks, update)
        self._engine = Engine(
            self._loop.step,
            self._loop.device,
            captures=engine != "eager" and self._team.alone,
            settle=update.settle,
        )
        self.numbers = RandomNumbers(self._loop.device, seed=0)

    def start(self, task: Task, recipe: Recipe, *, seed: int) -> None:
        """Begin with step 0."""
        self.step, self._dead = 0, False
        self._recipe, self._schedule = recipe, find_schedule(recipe.schedule)
        self._guessing = math.log(task.num_classes)
        self.numbers.seed(seed)
        self._loop.start(task)
        self._model.train()
        self._draws = draw_blocks(
            task, recipe.batch, recipe.steps, seed=seed, augment=recipe.augment, mixup=recipe.mixup
        )

    def run(self, title: str, progress: bool | None = None) -> Curve:
        """Do all steps, or those that are left of a run that was stopped, under a progress bar."""
        team, keeper = self._team, Keeper.of(self)
        if self.step == 0:
            team.hand_out(self._tensors().values())
        with (
            self.numbers.resumed(),
            Signals(active=keeper.active or not team.alone) as signals,
            whole_batches(self._model, team, self._loop.batch),
            bar(title, self._recipe.steps, show=progress) as advance,
        ):
            shown = self.step
            advance(shown)
            while not self.done:
                self.advance()
                if self.step % _LOOK_EVERY == 0 or self.done:
                    loss = self.check()
                    advance(self.step - shown, note=f"loss {loss:.3f}")
                    shown = self.step
                if self._is_time_to_probe():
                    self.warn_if_dead()
                if self.step % _COMPARE_EVERY == 0 or self.done:
                    held = self.state() | with_prefix("numbers", self.numbers.state())
                    team.check_same(held, f"after {self.step} steps")
                if team.any(signals.pending):  # all of them end with the same step
                    signals.expect()
                keeper.look(now=signals.pending)
                signals.deliver()
        return self.finish()

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.step == self._recipe.steps

    def advance(self) -> None:
        """Do one step."""
        step = self.step
        if step % BLOCK == 0:
            self._load_block(step)
        for hook in self._hooks:
            hook.before(step)
        self._loop.enter(phase := self._phase)
        self._engine.run(phase)
        for hook in self._hooks:
            hook.after(step)
        self.step += 1

    def check(self) -> float:
        """Return the last loss; raise if it, or whatever a hook looks at, is not finite."""
        losses: list[float] = self._loop.losses[: self.step].tolist()
        _check(losses, self._recipe)
        for hook in self._hooks:
            hook.check(self.step - 1)
        return losses[-1]

    def _is_time_to_probe(self) -> bool:
        step, steps = self.step, self._recipe.steps
        return _PROBES * step // steps > _PROBES * (step - 1) // steps

    def warn_if_dead(self) -> None:
        """Warn once if the network gives one and the same output whatever it sees."""
        images = self._loop.images
        if self.step < _SETTLED or self._dead:
            return
        if not gives_one_output(self._model, images.some(_SEEN)):
            return
        self._dead = True
        warnings.warn(
            f"after {self.step} of {self._recipe.steps} steps the network gives one and the same output"
            " for all images: it is dead, and further steps are lost; try a smaller learning rate, a"
            " lower sparsity, or another initialisation",
            NetworkWarning,
            stacklevel=2,
        )

    def size(self) -> int:
        """Return about how many bytes its state takes: the network's, and as much again for momenta."""
        return 2 * sum(tensor.nbytes for tensor in self._tensors().values())

    def state(self) -> State:
        """Return all that what is to come depends on, as long as the images are the same."""
        state = {"step": self.step, "losses": self._loop.losses}
        state |= with_prefix("model", self._tensors())
        for number, hook in enumerate(self._hooks):
            state |= with_prefix(f"hook{number}", hook.state())
        if not self.done:
            state["entered"] = self._loop.phase == self._phase
            state |= with_prefix("numbers", self.numbers.state())
            state |= with_prefix("update", self._loop.update.state())
        return state

    def load_state(self, state: State) -> None:
        """Go on from such a state; to be called after `start`."""
        step = state["step"]
        if type(step) is not int or not 0 <= step <= self._recipe.steps:
            raise ValueError("the state of a step that does not come")
        mine, saved = self._tensors(), part_of(state, "model")
        check_alike(saved, mine)
        if not is_finite({**saved, "losses": state["losses"]}):
            raise ValueError("the state of a network that has died")
        for name, tensor in mine.items():
            tensor.detach().copy_(saved[name])
        for number, hook in enumerate(self._hooks):
            hook.load_state(part_of(state, f"hook{number}"))
        self._loop.losses.copy_(state["losses"])
        self.step = step
        if not self.done:
            self.numbers.load_state(part_of(state, "numbers"))
            self._loop.update.load_state(part_of(state, "update"))
            self._loop.jump(self.step, self._phase if state["entered"] else None)
        check_same(self.state(), state)
        # batches follow from the seed: those that are done are drawn again and passed over
        for first in range(0, 0 if self.done else self.step, BLOCK):
            self._load_block(first)

    def finish(self) -> Curve:
        """Forget the gradients and return the losses; warn if they ended far above guessing."""
        self._loop.update.forget()
        curve = Curve(tuple(self._loop.losses.tolist()))
        last = curve.final(10)
        if last > max(_WILD * self._guessing, curve.loss[0]):
            warnings.warn(
                f"the loss ends at {last:.3g}, where guessing has {self._guessing:.3g}: the"
                f" training has gone astray; try a smaller learning rate than {self._recipe.lr:g}",
                NetworkWarning,
                stacklevel=2,
            )
        return curve

    @property
    def _phase(self) -> Hashable:
        return tuple(hook.phase for hook in self._hooks)

    def _load_block(self, first: int) -> None:
        recipe = self._recipe
        coming = range(first, min(first + BLOCK, recipe.steps))
        lrs = [recipe.lr * self._schedule(number, recipe.steps) for number in coming]
        self._loop.load(next(self._draws), lrs)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the network's own numbers by name, and not the shadows of them."""
        tensors: dict[str, Tensor] = dict(self._model.named_parameters())
        return {**tensors, **dict(self._model.named_buffers()), **self._loop.update.weights()}


def _check(losses: Sequence[float], recipe: Recipe) -> None:
    bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise TrainingError(
            f"the loss is {losses[bad[0]]} at step {bad[0]} of {recipe.steps}: "
            f"try a smaller learning rate than {recipe.lr:g}, or clip the gradient"
        )
