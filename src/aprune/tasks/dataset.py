"""A whole data set, before anything is chosen from it."""

import hashlib
from dataclasses import dataclass

import torch

from aprune.errors import TaskError
from aprune.files import printable
from aprune.tasks.task import Augment


@dataclass(frozen=True, eq=False)
class DataSet:
    """All images of a data set with their original labels.

    Attributes:
        name: Short name, which the tasks made of it get.
        train_images: uint8 tensor [N, C, H, W].
        train_labels: int64 tensor [N], numbers into `classes`.
        test_images: As `train_images`.
        test_labels: As `train_labels`.
        classes: Names of all classes, also of those without an image.
        augment: How training images may be varied.
        checksum: SHA-256 of all pixels and labels; computed if not given.

    Example:
        >>> images, labels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 2])
        >>> tiny = DataSet("tiny", images, labels, images, labels, ("a", "b", "c"), Augment())
        >>> tiny.present
        [0, 2]
    """

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: tuple[str, ...]
    augment: Augment
    checksum: str = ""

    def __post_init__(self) -> None:
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise TaskError(
                f"{printable(self.name)} has training images of shape {self.shape} and test images"
                f" of shape {tuple(self.test_images.shape[1:])}; the files do not belong together,"
                " get them again"
            )
        lone = set(self.train_labels.tolist()) ^ set(self.test_labels.tolist())
        if lone:
            raise TaskError(
                f"class {printable(self.classes[min(lone)])} of {printable(self.name)} is only in one"
                " of the training and test parts; both need images of every class"
            )
        if not self.checksum:
            object.__setattr__(self, "checksum", self.compute_checksum())

    @property
    def present(self) -> list[int]:
        """Numbers of the classes that have images, in order."""
        return sorted(set(self.train_labels.tolist()))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    def compute_checksum(self) -> str:
        """Return the SHA-256 of shapes, pixels and labels as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for images, labels in (
            (self.train_images, self.train_labels),
            (self.test_images, self.test_labels),
        ):
            digest.update(str(tuple(images.shape)).encode())
            digest.update(images.contiguous().numpy().data)
            digest.update(labels.numpy().astype("<i8").tobytes())
        return digest.hexdigest()
