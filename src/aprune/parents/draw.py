"""Initial weights, drawn from a seed that nobody else's random numbers notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Draw random numbers from ``seed`` inside the block and leave the global ones as they were.

    Networks built inside stand on the CPU, whatever the default device, so that a seed means the
    same weights everywhere; under ``torch.device("meta")`` they stay without storage.

    Args:
        seed: Where the random numbers start.

    Example:
        >>> with drawing_from(3):
        ...     first = torch.rand(2)
        >>> with drawing_from(3):
        ...     second = torch.rand(2)
        >>> torch.equal(first, second)
        True
    """
    device = "meta" if torch.get_default_device().type == "meta" else "cpu"
    with torch.random.fork_rng(devices=[]), torch.device(device):
        # torch.manual_seed would reseed the GPUs too, which fork_rng does not restore here.
        torch.default_generator.manual_seed(seed)
        yield


def make_drawn(make: Callable[[], nn.Module], draw_linear: Callable[[Tensor], object]) -> nn.Module:
    """Make a network and draw its weights once, where its layers would have drawn them first.

    Convolutions are He normal in their fan-out, biases zero, norms the identity.

    Args:
        make: Makes the network out of convolutions, linear layers and batch norms.
        draw_linear: Fills the weight of a linear layer in place.

    Returns:
        The network on the default device.

    Example:
        >>> make_drawn(lambda: nn.Linear(2, 2), nn.init.ones_).weight.sum().item()
        4.0
    """
    with torch.device("meta"):
        network = make()
    network.to_empty(device=torch.get_default_device())
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            draw_linear(layer.weight)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def draw_he(weight: Tensor) -> None:
    """Fill a weight as suits a layer between ReLUs: normal with variance 2 / fan-in.

    Example:
        >>> weight = torch.empty(100, 200)
        >>> with drawing_from(0):
        ...     draw_he(weight)
        >>> round(weight.std().item(), 2)
        0.1
    """
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


def draw_narrow(weight: Tensor) -> None:
    """Fill a weight as torchvision fills VGG's classifier: normal with deviation 0.01.

    Example:
        >>> weight = torch.empty(100, 200)
        >>> with drawing_from(0):
        ...     draw_narrow(weight)
        >>> round(weight.std().item(), 3)
        0.01
    """
    nn.init.normal_(weight, 0.0, 0.01)


def draw_uniform(weight: Tensor) -> None:
    """Fill a weight as PyTorch fills a linear layer: uniform within ±1 / √fan-in.

    Example:
        >>> weight = torch.empty(50, 100)
        >>> with drawing_from(0):
        ...     draw_uniform(weight)
        >>> round(weight.abs().max().item(), 2)
        0.1
    """
    bound = weight.shape[1] ** -0.5
    nn.init.uniform_(weight, -bound, bound)
