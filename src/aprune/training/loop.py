"""One training step, on tensors that stay where they are."""

import itertools
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from aprune.errors import SettingError
from aprune.tasks import Task
from aprune.training.batch import BLOCK, Draw, Images
from aprune.training.device import dtype_of, mixed_precision
from aprune.training.hook import Hook
from aprune.training.ranks import current_team
from aprune.training.recipe import Recipe
from aprune.training.update import Update


class Loop:
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
        self.images = Images(task, augment=recipe.augment, dtype=dtype_of(model))
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
        """Take notice of the phase of the coming step."""
        if phase != self.phase:
            self.phase = phase
            self.update.begin()

    def jump(self, step: int, phase: Hashable) -> None:
        """Go to a step; `phase` is that of the step before, or None if `update` is to look anew."""
        self._step.fill_(step)
        self.phase = phase

    def step(self) -> None:
        """Do one step."""
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
