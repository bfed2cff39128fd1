"""Batches of a task's training images, made on the device.

Which images come when, and how each is shifted and mirrored, is drawn beforehand with a generator of
its own. So the same seed gives the same batches whatever runs the step, and a captured step needs no
random numbers for its data.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aprune.maths.seed import derive_seed
from aprune.tasks import Task

BLOCK = 256
"""Steps whose batches are drawn at once: the device gets them with one copy."""


@dataclass
class Draw:
    """What one batch is made of: image numbers, and a shift and mirror flag for each.

    `share` is how much of a second image each gets, one number for the whole batch. The tensors of
    several batches have a dimension more, the first.
    """

    index: Tensor
    rows: Tensor
    columns: Tensor
    mirror: Tensor
    share: Tensor

    def __getitem__(self, step: int) -> "Draw":
        """Return one of several batches."""
        return Draw(*(tensor[step] for tensor in self.tensors()))

    def part(self, which: slice) -> "Draw":
        """Return some of the images of one batch."""
        return self._each(lambda tensor: tensor[which])

    def flipped(self) -> "Draw":
        """Return one batch in reverse order."""
        return self._each(lambda tensor: tensor.flip(0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Draw":
        index, rows, columns, mirror, share = self.tensors()
        return Draw(change(index), change(rows), change(columns), change(mirror), share)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the five tensors."""
        return self.index, self.rows, self.columns, self.mirror, self.share


def draw_batches(
    task: Task, batch: int, steps: int, *, seed: int, augment: bool = True, mixup: float = 0.0
) -> Iterator[Draw]:
    """Draw `steps` batches: random orders of all images, one after another, cut into batches."""
    for block in draw_blocks(task, batch, steps, seed=seed, augment=augment, mixup=mixup):
        for step in range(len(block.share)):
            yield block[step]


def draw_blocks(
    task: Task, batch: int, steps: int, *, seed: int, augment: bool = True, mixup: float = 0.0
) -> Iterator[Draw]:
    """Draw the same batches, `BLOCK` of them at a time."""
    images = len(task.train_labels)
    batch = min(batch, images)
    device = task.train_labels.device
    generator = torch.Generator().manual_seed(seed)
    # of its own, so that the images come in the same order with and without
    mixing = torch.Generator().manual_seed(derive_seed(seed, "mixup"))
    shift = task.augment.shift if augment else 0
    mirror = task.augment.flip if augment else False
    left = torch.empty(0, dtype=torch.int64)
    for first in range(0, steps, BLOCK):
        now = min(BLOCK, steps - first)
        pieces = [left]
        while sum(len(piece) for piece in pieces) < now * batch:
            pieces.append(torch.randperm(images, generator=generator))
        order = torch.cat(pieces)
        index, left = order[: now * batch].view(now, batch), order[now * batch :]
        rows, columns = torch.randint(0, 2 * shift + 1, (2, now, batch), generator=generator)
        mirrored = torch.rand((now, batch), generator=generator) < (0.5 if mirror else 0.0)
        shares = mixup * torch.rand(now, generator=mixing)
        yield Draw(*(t.to(device) for t in (index, rows, columns, mirrored, shares)))


class Images:
    """A task's images on a device, ready to be cut into normalised float batches."""

    def __init__(
        self, task: Task, *, augment: bool = True, dtype: torch.dtype = torch.float32
    ) -> None:
        self.pixels, self.labels = task.train_images, task.train_labels
        self.shift = task.augment.shift if augment else 0
        self.moving = augment and (task.augment.shift > 0 or task.augment.flip)
        self.normalise = Normalise(task.mean, task.std, dtype)

    def load(self, task: Task) -> None:
        """Take over the images of another task of the same shapes, where these are in memory."""
        if task.train_images is not self.pixels:
            self.pixels.copy_(task.train_images)
            self.labels.copy_(task.train_labels)
            self.normalise.load(task.mean, task.std)

    def some(self, number: int) -> Tensor:
        """Return a few images from all over the task, normalised."""
        every = max(1, len(self.pixels) // number)
        return self.normalise(self.pixels[::every][:number])

    def take(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Return the images and labels of one draw."""
        x, y = self.pixels[draw.index], self.labels[draw.index]
        if self.moving:
            x = _move(x, draw, self.shift)
        return self.normalise(x), y


class Normalise:
    """uint8 pixels to floats with a mean and deviation for each channel, on the scale 0 … 1.

    Args:
        mean: Of each channel.
        std: Likewise.
        dtype: Of the floats: that of the network which reads them.
    """

    def __init__(self, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.scale = (1.0 / (255.0 * std)).view(1, -1, 1, 1)
        self.offset = (-mean / std).view(1, -1, 1, 1)

    def load(self, mean: Tensor, std: Tensor) -> None:
        """Take over other moments, where these are in memory."""
        other = Normalise(mean, std)
        self.scale.copy_(other.scale)
        self.offset.copy_(other.offset)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return normalised floats, channels last where that is fast."""
        x = pixels.float() * self.scale.to(pixels.device) + self.offset.to(pixels.device)
        x = x.to(self.dtype)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


def _move(x: Tensor, draw: Draw, shift: int) -> Tensor:
    """Shift by up to `shift` pixels, zeros coming in, and mirror some."""
    height, width = x.shape[-2:]
    padded = torch.nn.functional.pad(x, (shift,) * 4)
    columns = torch.arange(width, device=x.device).expand(len(x), width)
    columns = torch.where(draw.mirror[:, None], width - 1 - columns, columns)
    columns = columns + draw.columns[:, None]
    rows = torch.arange(height, device=x.device) + draw.rows[:, None]
    image = torch.arange(len(x), device=x.device)[:, None, None]
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
