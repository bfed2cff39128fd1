"""Residual networks: torchvision's 18, 34 and 50 layers, and the CIFAR nets of 20 and 56."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aprune.parents.task import Shape

Shortcut = Callable[[int, int, int], nn.Module]
"""From inputs, outputs and stride to the branch around a block whose shape changes."""


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the batch norm behind every convolution here would take it out again.
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _project(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Subsample(nn.Module):
    """A shortcut without parameters: every ``stride``-th pixel, new channels zero.

    The zero channels go half before and half behind those of the input (option A of He et al.).

    Example:
        >>> Subsample(16, 32, 2)(torch.ones(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.behind = outputs - inputs - self.before

    def forward(self, images: Tensor) -> Tensor:
        """Return the thinned images with the new channels."""
        thinned = images[:, :, :: self.stride, :: self.stride]
        return F.pad(thinned, (0, 0, 0, 0, self.before, self.behind))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and the way around them."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """Return the rectified sum of both ways."""
        around = images if self.downsample is None else self.downsample(images)
        through = self.relu(self.bn1(self.conv1(images)))
        through = self.bn2(self.conv2(through))
        total: Tensor = self.relu(through + around)
        return total


class Bottleneck(nn.Module):
    """A 1×1, a 3×3 (which carries the stride) and a 1×1 convolution and the way around them."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """Return the rectified sum of both ways."""
        around = images if self.downsample is None else self.downsample(images)
        through = self.relu(self.bn1(self.conv1(images)))
        through = self.relu(self.bn2(self.conv2(through)))
        through = self.bn3(self.conv3(through))
        total: Tensor = self.relu(through + around)
        return total


Block = type[BasicBlock] | type[Bottleneck]


def _stage(
    block: Block, inputs: int, width: int, count: int, stride: int, shortcut: Shortcut
) -> nn.Sequential:
    outputs = width * block.expansion
    changes = stride != 1 or inputs != outputs
    first = block(inputs, width, stride, shortcut(inputs, outputs, stride) if changes else None)
    return nn.Sequential(first, *(block(outputs, width, 1, None) for _ in range(count - 1)))


_LAYERS: dict[int, tuple[Block, tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual network for large images: the first two layers shrink them by four.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.
        depth: 18, 34 or 50 layers with weights.

    Example:
        >>> with torch.device("meta"):
        ...     network = ResNet((3, 224, 224), 1000, depth=18)
        >>> sum(parameter.numel() for parameter in network.parameters())
        11689512
    """

    def __init__(self, shape: Shape, num_classes: int, *, depth: int) -> None:
        super().__init__()
        block, (first, second, third, fourth) = _LAYERS[depth]
        wider = block.expansion
        self.conv1 = _convolution(shape[0], 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, first, 1, _project)
        self.layer2 = _stage(block, 64 * wider, 128, second, 2, _project)
        self.layer3 = _stage(block, 128 * wider, 256, third, 2, _project)
        self.layer4 = _stage(block, 256 * wider, 512, fourth, 2, _project)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * wider, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of class scores for each image."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        scores: Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return scores


class CifarResNet(nn.Module):
    """A residual network for small images: 16, 32 and 64 channels, shortcuts without parameters.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.
        depth: Layers with weights: 6n + 2 for n blocks a stage.

    Example:
        >>> network = CifarResNet((3, 32, 32), 10, depth=20)
        >>> sum(parameter.numel() for parameter in network.parameters())
        269722
    """

    def __init__(self, shape: Shape, num_classes: int, *, depth: int) -> None:
        super().__init__()
        count = (depth - 2) // 6
        self.conv1 = _convolution(shape[0], 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(BasicBlock, 16, 16, count, 1, Subsample)
        self.layer2 = _stage(BasicBlock, 16, 32, count, 2, Subsample)
        self.layer3 = _stage(BasicBlock, 32, 64, count, 2, Subsample)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of class scores for each image."""
        features = self.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        scores: Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return scores
