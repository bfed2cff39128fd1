"""VGG networks, with torchvision's module layout, parameter names and shapes."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from aprune.parents.task import Shape

Plan = Sequence[int | Literal["pool"]]
"""A number is a convolution with so many outputs, ``"pool"`` halves the image."""

# How many convolutions stand before each of the five poolings.
_DEPTHS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_WIDTHS = (64, 128, 256, 512, 512)
_POOLED = 7
_HIDDEN = 4096

SMALLEST_IMAGE = 2 ** len(_WIDTHS)
"""Five poolings leave nothing of an image with fewer pixels a side."""


def _plan(depth: int) -> Plan:
    blocks = zip(_WIDTHS, _DEPTHS[depth], strict=True)
    return list(chain.from_iterable([*[width] * count, "pool"] for width, count in blocks))


def stack_convolutions(plan: Plan, channels: int, *, batch_norm: bool) -> nn.Sequential:
    """Stack 3×3 convolutions, each followed by a ReLU, and poolings that halve the image.

    Args:
        plan: What stands in the stack, in order.
        channels: Channels of the input.
        batch_norm: Whether each convolution is normalised before its ReLU.

    Returns:
        The stack; its layers are numbered from 0.

    Example:
        >>> stack = stack_convolutions([4, "pool", 8], 1, batch_norm=False)
        >>> [type(layer).__name__ for layer in stack]
        ['Conv2d', 'ReLU', 'MaxPool2d', 'Conv2d', 'ReLU']
    """
    layers: list[nn.Module] = []
    for entry in plan:
        if entry == "pool":
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        layers.append(nn.Conv2d(channels, entry, kernel_size=3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(entry))
        layers.append(nn.ReLU(inplace=True))
        channels = entry
    return nn.Sequential(*layers)


class CifarVGG(nn.Module):
    """A VGG for small images: convolutions with batch norm, their mean, and one linear layer.

    The last of the five poolings is a mean over what is left of the image.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.
        depth: 11, 13, 16 or 19, as the network would be counted with three linear layers.

    Example:
        >>> with torch.device("meta"):
        ...     network = CifarVGG((3, 32, 32), 10, depth=16)
        >>> sum(parameter.numel() for parameter in network.parameters())
        14728266
    """

    def __init__(self, shape: Shape, num_classes: int, *, depth: int) -> None:
        super().__init__()
        self.features = stack_convolutions(_plan(depth)[:-1], shape[0], batch_norm=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(_WIDTHS[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of class scores for each image."""
        pooled = torch.flatten(self.avgpool(self.features(images)), 1)
        scores: Tensor = self.classifier(pooled)
        return scores


class VGG(nn.Module):
    """A VGG network: convolutions, a pooling to 7×7 and three linear layers.

    The classifier always sees 7×7 positions, so its shape does not depend on the image size.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.
        depth: 11, 13, 16 or 19 layers with weights.
        batch_norm: Whether the convolutions are normalised.

    Example:
        >>> with torch.device("meta"):
        ...     network = VGG((3, 32, 32), 10, depth=19, batch_norm=False)
        >>> sum(parameter.numel() for parameter in network.parameters())
        139611210
    """

    copied: ClassVar[str] = "classifier.0.weight"
    """The weight whose inputs may come as copies."""

    def __init__(self, shape: Shape, num_classes: int, *, depth: int, batch_norm: bool) -> None:
        super().__init__()
        self.features = stack_convolutions(_plan(depth), shape[0], batch_norm=batch_norm)
        self.avgpool: nn.Module = nn.AdaptiveAvgPool2d((_POOLED, _POOLED))
        self.classifier = nn.Sequential(
            nn.Linear(_WIDTHS[-1] * _POOLED * _POOLED, _HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0.5),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0.5),
            nn.Linear(_HIDDEN, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of class scores for each image."""
        pooled = self.avgpool(self.features(images))
        scores: Tensor = self.classifier(torch.flatten(pooled, 1))
        return scores

    @contextlib.contextmanager
    def without_copies(self) -> Iterator[None]:
        """Give the classifier each input once for the block; for images of which it sees copies."""
        pool, self.avgpool = self.avgpool, nn.Identity()
        try:
            yield
        finally:
            self.avgpool = pool

    @staticmethod
    def copies(shape: Shape) -> int:
        """Return how often the classifier sees each of its inputs for images of that shape.

        Example:
            >>> VGG.copies((3, 32, 32)), VGG.copies((3, 224, 224))
            (49, 1)
        """
        left = [side // SMALLEST_IMAGE for side in shape[1:]]
        return _POOLED**2 if left == [1, 1] else 1
