"""A task: images with labels to learn from, others to be judged on, all of it as tensors."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from aprune.errors import SettingError, TaskError
from aprune.tasks.draw import shuffled


@dataclass(frozen=True)
class Augment:
    """How training images are varied at random; done on the device by whoever trains.

    Attributes:
        flip: Whether an image may be mirrored left to right.
        shift: By how many pixels at most it is shifted each way, filled up with zeros.

    Example:
        >>> Augment(flip=True, shift=4)
        Augment(flip=True, shift=4)
    """

    flip: bool = False
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test images with labels 0 … K − 1.

    Attributes:
        name: Short name of the data set.
        train_images: uint8 tensor [N, C, H, W].
        train_labels: int64 tensor [N].
        test_images: As `train_images`; only ever evaluated on.
        test_labels: As `train_labels`.
        classes: Names of the K classes; the index is the label.
        augment: How training images may be varied.
        provenance: Where it all comes from, ready for JSON: data set, checksum, original numbers of
            the classes, number of images, seed, size.

    Example:
        >>> from aprune.tasks import load_task
        >>> task = load_task("digits", classes=[3, 5], images=20)
        >>> task.shape, task.num_classes, task.classes, len(task.train_labels)
        ((1, 8, 8), 2, ('3', '5'), 20)
    """

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: tuple[str, ...]
    augment: Augment
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise TaskError(f"task {self.name} has {len(self.classes)} class(es); give at least 2")
        _check_part(self, "training", self.train_images, self.train_labels)
        _check_part(self, "test", self.test_images, self.test_labels)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise TaskError(
                f"task {self.name} has training images of shape {self.shape} and test images of"
                f" shape {tuple(self.test_images.shape[1:])}; make them alike"
            )

    def check_variety(self) -> None:
        """Raise a `TaskError` if there is nothing to be learnt: one class only, or one image only."""
        labels, images = self.train_labels, self.train_images
        if bool((labels == labels[0]).all()):
            raise TaskError(
                f"all {len(labels)} training images of task {self.name} are of class"
                f" {self.classes[int(labels[0])]}; give some of at least 2 classes"
            )
        # the first two most often tell
        if torch.equal(images[0], images[1]) and bool((images == images[:1]).all()):
            raise TaskError(
                f"all {len(images)} training images of task {self.name} are the same; give images"
                " that differ"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.classes)

    @property
    def mean(self) -> torch.Tensor:
        """Mean of each channel of the training images, on the scale 0 … 1."""
        return self._moments[0]

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation of each channel on the scale 0 … 1, never below 1/255."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        # Counting values is exact, so every device gives the same numbers, and needs little memory.
        device, channels = self.train_images.device, self.train_images.unbind(1)
        counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in channels])
        weights = counts.cpu().double() / channels[0].numel()
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = weights @ values
        deviations = values - mean[:, None]
        std = (weights * deviations.square()).sum(1).sqrt().clamp(min=1 / 255)
        return mean.float().to(device), std.float().to(device)

    def to(self, device: torch.device | str) -> "Task":
        """Return the same task with its tensors on `device`.

        Example:
            >>> from aprune.tasks import load_task
            >>> load_task("digits").to("cpu").train_images.device
            device(type='cpu')
        """
        return dataclasses.replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
        )

    def hold_out(self, fraction: float, seed: int) -> "Task":
        """Return a task whose test images are a part of this one's training images.

        Settings are chosen on such a task: the real test images are not in it at all. The same
        fraction of every class is held out, at least one image and never all of them.

        Args:
            fraction: Part of the training images to hold out, between 0 and 1.
            seed: Decides which ones.

        Returns:
            A task with the rest to train on and the held-out part to be judged on.

        Example:
            >>> from aprune.tasks import load_task
            >>> part = load_task("digits", images=100).hold_out(0.2, seed=0)
            >>> len(part.train_labels), len(part.test_labels)
            (80, 20)
        """
        if not 0 < fraction < 1:
            raise SettingError(
                f"got {fraction} as the fraction to hold out; choose one between 0 and 1"
            )
        held = torch.zeros(len(self.train_labels), dtype=torch.bool)
        labels = self.train_labels.cpu()
        for label, name in enumerate(self.classes):
            members = (labels == label).nonzero().flatten()
            if len(members) < 2:
                raise TaskError(
                    f"class {name} of {self.name} has {len(members)} training image(s), too few to"
                    " hold one out; use at least 2 images for each class"
                )
            count = min(max(1, round(fraction * len(members))), len(members) - 1)
            held[members[shuffled(len(members), seed, "hold out", label)[:count]]] = True
        held = held.to(self.train_labels.device)
        return dataclasses.replace(
            self,
            train_images=self.train_images[~held],
            train_labels=self.train_labels[~held],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
            provenance={**self.provenance, "held_out": {"fraction": fraction, "seed": seed}},
        )


def _check_part(task: Task, part: str, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise a `TaskError` unless images and labels have the right type, shape and range."""
    where = f"the {part} part of task {task.name}"
    for what, given in (("images", images), ("labels", labels)):
        if not isinstance(given, torch.Tensor):
            kind = f"{what} of type {type(given).__name__}"
            raise TaskError(
                f"{where} has {f'no {what}' if given is None else kind}; give a tensor of them"
            )
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TaskError(
            f"{where} has {images.dtype} images of shape {tuple(images.shape)};"
            " give torch.uint8 ones of shape [N, C, H, W]"
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise TaskError(
            f"{where} has {labels.dtype} labels of shape {tuple(labels.shape)} for {len(images)}"
            " images; give one torch.int64 label for each"
        )
    if images.numel() == 0:
        raise TaskError(
            f"{where} is empty (shape {tuple(images.shape)}); at least 1 image is needed"
        )
    low, high = (int(value) for value in labels.aminmax())
    if low < 0 or high >= len(task.classes):
        raise TaskError(
            f"{where} has labels from {low} to {high}; with {len(task.classes)} classes they must"
            f" lie in 0 … {len(task.classes) - 1}"
        )
