"""Parents that learn 8×8 digits within seconds on a CPU."""

from collections import OrderedDict
from math import prod

from torch import nn

from aprune.parents.task import Shape
from aprune.parents.vgg import Plan, stack_convolutions

_HIDDEN = (256, 128)
_POOLED = 2

SMALLEST_CONV_IMAGE = 4
"""The two poolings of the small convolutional net leave nothing of fewer pixels a side."""


def make_logistic(shape: Shape, num_classes: int) -> nn.Module:
    """Make a logistic regression: one linear layer from pixels to classes.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.

    Returns:
        The network; its only layer is called ``fc``.

    Example:
        >>> make_logistic((1, 8, 8), 2).fc.weight.shape
        torch.Size([2, 64])
    """
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(prod(shape), num_classes)))


def make_mlp(shape: Shape, num_classes: int) -> nn.Module:
    """Make a perceptron with two hidden layers of 256 and 128 rectified units.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.

    Returns:
        The network; its layers are called ``fc1``, ``fc2`` and ``fc3``.

    Example:
        >>> [name for name, _ in make_mlp((1, 8, 8), 10).named_parameters()][:3]
        ['fc1.weight', 'fc1.bias', 'fc2.weight']
    """
    first, second = _HIDDEN
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(prod(shape), first),
            relu1=nn.ReLU(inplace=True),
            fc2=nn.Linear(first, second),
            relu2=nn.ReLU(inplace=True),
            fc3=nn.Linear(second, num_classes),
        )
    )


def make_conv(shape: Shape, num_classes: int, *, batch_norm: bool) -> nn.Module:
    """Make a net of three 3×3 convolutions and one linear layer.

    The features are pooled to 2×2, which 8×8 images reach by themselves, so that the linear layer
    has one shape for all image sizes and an architecture carries over whole.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of outputs.
        batch_norm: Whether the convolutions are normalised.

    Returns:
        The network; its layers are called ``features.0``, … and ``classifier``.

    Example:
        >>> make_conv((1, 8, 8), 10, batch_norm=False).classifier.weight.shape
        torch.Size([10, 256])
    """
    plan: Plan = (32, 64, "pool", 64, "pool")
    return nn.Sequential(
        OrderedDict(
            features=stack_convolutions(plan, shape[0], batch_norm=batch_norm),
            avgpool=nn.AdaptiveAvgPool2d((_POOLED, _POOLED)),
            flatten=nn.Flatten(),
            classifier=nn.Linear(64 * _POOLED * _POOLED, num_classes),
        )
    )
