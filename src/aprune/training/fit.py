"""The training loop: one for searches, pruning rounds and retrainings.

What differs between them comes as hooks, which the loop calls at fixed places and otherwise knows
nothing about.
"""

import itertools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aprune.errors import NetworkWarning, SettingError, TrainingError
from aprune.initialise import RandomNumbers
from aprune.maths.schedules import find_schedule
from aprune.progress import bar
from aprune.tasks import Task
from aprune.training.batch import BLOCK, Draw, Images, draw_blocks
from aprune.training.checkpoint import (
    Keeper,
    Signals,
    State,
    check_alike,
    check_same,
    is_finite,
    part_of,
    with_prefix,
)
from aprune.training.device import mixed_precision
from aprune.training.engine import Engine, Level, compile_network
from aprune.training.evaluate import gives_one_output
from aprune.training.ranks import current_team
from aprune.training.recipe import Recipe
from aprune.training.update import PlainUpdate, Update
from aprune.training.whole_batch import whole_batches

_LOOK_EVERY = 25  # steps between two looks at the loss, each of which waits for the device
_PROBES = 10  # looks at whether the network is still alive,
_SETTLED = 50  # from this step on: running statistics of norms must have come about
_SEEN = 64  # images that it is shown for that
_COMPARE_EVERY = 500  # steps after which processes that train together compare what they hold


class Hook:
    """What may happen around a step; every place does nothing by default.

    `before` and `after` run on the host, once a step. `on_gradient` and `on_update` are part of the
    step itself and may be captured: they use tensors only, and wait for nothing.
    """

    def before(self, step: int) -> None:
        """Set what the coming step reads."""

    def on_gradient(self) -> None:
        """Change the gradients before they are clipped and used."""

    def on_update(self) -> None:
        """Follow the update of the weights."""

    def after(self, step: int) -> None:
        """Look at what the step did."""

    @property
    def phase(self) -> Hashable:
        """What kind of step comes next; steps of one phase do the same things."""
        return None

    def check(self, step: int) -> None:
        """Raise if numbers went wrong; called every now and then."""

    def state(self) -> State:
        """Return what it remembers from step to step, beside the network: see `checkpoint.State`."""
        return {}

    def load_state(self, state: State) -> None:
        """Remember that again."""


class KeepMasked(Hook):
    """Keeps the weights outside an architecture at exactly zero, whatever the optimiser.

    Their gradients are masked, θ ← θ − β·m∘∇L, so that they enter neither clipping nor momentum, and
    the weights themselves after each update, so that no optimiser can revive one.
    """

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]) -> None:
        parameters = dict(model.named_parameters())
        self.weights: list[Tensor] = [parameters[name] for name in masks]
        # like the weight in memory too: both are read side by side at every step
        self.masks = [torch.empty_like(weight) for weight in self.weights]
        self.load(masks)

    def load(self, masks: Mapping[str, Tensor]) -> None:
        """Take over other masks of the same weights, where these are in memory."""
        for mine, name in zip(self.masks, masks, strict=True):
            mine.detach_().copy_(masks[name])
        self.on_update()

    def on_gradient(self) -> None:
        """Mask the gradients."""
        pairs = [
            (weight.grad, mask)
            for weight, mask in zip(self.weights, self.masks, strict=True)
            if weight.grad is not None
        ]
        if pairs:  # none if the user froze all of them
            torch._foreach_mul_([grad for grad, _ in pairs], [mask for _, mask in pairs])

    def on_update(self) -> None:
        """Mask the weights."""
        if self.weights:
            with torch.no_grad():
                torch._foreach_mul_(self.weights, self.masks)


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
        self._loop = _Loop(network, task, recipe, hooks, update)
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
                    self._warn_if_dead()
                if self.step % _COMPARE_EVERY == 0 or self.done:
                    team.check_same(self._tensors().values(), f"after {self.step} steps")
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
        return step >= _SETTLED and _PROBES * step // steps > _PROBES * (step - 1) // steps

    def _warn_if_dead(self) -> None:
        images = self._loop.images
        if self._dead or not gives_one_output(self._model, images.some(_SEEN)):
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
        """Forget the gradients and return the losses."""
        self._loop.update.forget()
        return Curve(tuple(self._loop.losses.tolist()))

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


class _Loop:
    """One step on tensors that stay where they are, so that it can be captured.

    What a step needs to know lies on the device for many steps ahead, and the step itself counts
    where it is: the host has nothing to tell it.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        hooks: Sequence[Hook],
        update: Update,
    ) -> None:
        self.model, self.recipe, self.hooks, self.update = model, recipe, hooks, update
        self.device = task.train_labels.device
        self.images = Images(task, augment=recipe.augment)
        self.losses = torch.zeros(recipe.steps, device=self.device)
        self.batch = batch = min(recipe.batch, len(task.train_labels))
        self._team, self._mine = current_team(), current_team().share(batch)
        if batch < self._team.size:
            raise SettingError(
                f"a batch of {batch} images is too small for {self._team.size} processes: expected an"
                " image for each"
            )
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._draws = torch.zeros((BLOCK, 4, batch), dtype=torch.int64, device=self.device)
        self._rates = torch.zeros((BLOCK, 2), device=self.device)
        self.phase: Hashable = None

    def start(self, task: Task) -> None:
        """Go back to step 0, with the images of `task`."""
        self._step.zero_()
        self.images.load(task)
        self.update.start()

    def load(self, draws: Draw, lrs: Sequence[float]) -> None:
        """Take the batches and learning rates of the coming steps."""
        parts = (draws.index, draws.rows, draws.columns, draws.mirror.long())
        self._draws[: len(lrs)] = torch.stack(parts, 1)
        rates = torch.tensor(lrs, dtype=torch.float32, device=self.device)
        self._rates[: len(lrs)] = torch.stack((draws.share, rates), 1)

    def enter(self, phase: Hashable) -> None:
        if phase != self.phase:
            self.phase = phase
            self.update.begin()

    def jump(self, step: int, phase: Hashable) -> None:
        """Go to a step; `phase` is that of the step before, or None if `update` is to look anew."""
        self._step.fill_(step)
        self.phase = phase

    def step(self) -> None:
        self.update.forget()
        draw, lr = self._look_up()
        self.update.lr.copy_(lr)
        with mixed_precision(self.device):
            loss = self._mixed_loss(draw) if self.recipe.mixup else self._loss(draw)
        loss.backward()
        loss = loss.detach()
        self._team.add([loss, *self._gradients()])
        for hook in self.hooks:
            hook.on_gradient()
        self.update.move()
        for hook in self.hooks:
            hook.on_update()
        self.losses.index_copy_(0, self._step, loss.reshape(1).to(self.losses.dtype))
        self._step += 1

    def _look_up(self) -> tuple[Draw, Tensor]:
        """Return this step's batch and learning rate."""
        here = self._step % BLOCK
        index, rows, columns, mirror = self._draws.index_select(0, here)[0].unbind()
        share, lr = self._rates.index_select(0, here)[0].unbind()
        return Draw(index, rows, columns, mirror.bool(), share), lr

    def _loss(self, draw: Draw) -> Tensor:
        x, y = self._take(draw)
        return self._weigh(nn.functional.cross_entropy(self.model(x), y))

    def _mixed_loss(self, draw: Draw) -> Tensor:
        """Lay over each image another of the batch, and ask for both labels in the same shares."""
        x, y = self._take(draw)
        over, labels = (x.flip(0), y.flip(0)) if self._team.alone else self._take(draw.flipped())
        scores = self.model(x.lerp(over, draw.share))
        losses = [nn.functional.cross_entropy(scores, wanted) for wanted in (y, labels)]
        return self._weigh(losses[0].lerp(losses[1], draw.share))

    def _take(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Return the images and labels of a batch, or this process's share of them."""
        return self.images.take(draw if self._team.alone else draw.part(self._mine))

    def _weigh(self, mean: Tensor) -> Tensor:
        """Return what the mean over a share brings to that over the whole batch."""
        mine = self._mine.stop - self._mine.start
        return mean if self._team.alone else mean * (mine / self.batch)

    def _gradients(self) -> list[Tensor]:
        """Return all gradients; those of a mask belong to buffers."""
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return [tensor.grad for tensor in tensors if tensor.grad is not None]


def _check(losses: Sequence[float], recipe: Recipe) -> None:
    bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise TrainingError(
            f"the loss is {losses[bad[0]]} at step {bad[0]} of {recipe.steps}: "
            f"try a smaller learning rate than {recipe.lr:g}, or clip the gradient"
        )
