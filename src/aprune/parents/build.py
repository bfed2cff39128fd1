"""The table of parents, and what turns a name, a network or a function into a parent for a task."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from aprune.errors import ParentError
from aprune.parents.draw import draw_he, draw_narrow, draw_uniform, drawing_from, make_drawn
from aprune.parents.foreign import Factory, build_from_spec, call_factory, copy_foreign
from aprune.parents.resnet import CifarResNet, ResNet
from aprune.parents.small import SMALLEST_CONV_IMAGE, make_conv, make_logistic, make_mlp
from aprune.parents.task import Shape, TaskLike
from aprune.parents.vgg import SMALLEST_IMAGE, VGG, CifarVGG

# A variable, because nn.Module's stubs know no attributes that are plain strings.
_NAME = "parent_name"


@dataclass(frozen=True)
class _Parent:
    make: Callable[[Shape, int], nn.Module]
    draw_linear: Callable[[Tensor], object]
    smallest: int = 1


def _vgg(depth: int, *, batch_norm: bool) -> _Parent:
    return _Parent(partial(VGG, depth=depth, batch_norm=batch_norm), draw_narrow, SMALLEST_IMAGE)


def _conv(*, batch_norm: bool) -> _Parent:
    return _Parent(partial(make_conv, batch_norm=batch_norm), draw_he, SMALLEST_CONV_IMAGE)


_PARENTS = {
    "logistic": _Parent(make_logistic, draw_uniform),
    "mlp": _Parent(make_mlp, draw_he),
    "conv": _conv(batch_norm=False),
    "conv_bn": _conv(batch_norm=True),
    "vgg11": _vgg(11, batch_norm=False),
    "vgg11_bn": _vgg(11, batch_norm=True),
    "vgg13": _vgg(13, batch_norm=False),
    "vgg13_bn": _vgg(13, batch_norm=True),
    "vgg16": _vgg(16, batch_norm=False),
    "vgg16_bn": _vgg(16, batch_norm=True),
    "vgg19": _vgg(19, batch_norm=False),
    "vgg19_bn": _vgg(19, batch_norm=True),
    "cifar_vgg16": _Parent(partial(CifarVGG, depth=16), draw_he, SMALLEST_IMAGE // 2),
    "resnet18": _Parent(partial(ResNet, depth=18), draw_uniform),
    "resnet34": _Parent(partial(ResNet, depth=34), draw_uniform),
    "resnet50": _Parent(partial(ResNet, depth=50), draw_uniform),
    "resnet20": _Parent(partial(CifarResNet, depth=20), draw_uniform),
    "resnet56": _Parent(partial(CifarResNet, depth=56), draw_uniform),
}


def parent_names() -> tuple[str, ...]:
    """Name the parents that come with aprune.

    Returns:
        The names that `build_parent` knows.

    Example:
        >>> parent_names()[:4]
        ('logistic', 'mlp', 'conv', 'conv_bn')
    """
    return tuple(_PARENTS)


def build_parent(name: str, task: TaskLike, *, seed: int = 0) -> nn.Module:
    """Build a parent network for a task, with initial weights drawn from a seed.

    Args:
        name: One of `parent_names`, or ``package.module:factory`` for a function of your own
            that takes the task (with ``shape`` and ``num_classes``) and returns a network.
        task: Its images and classes give the numbers of inputs and outputs.
        seed: Draws the weights; the global random numbers stay as they are.

    Returns:
        The network on the CPU in training mode. Its ``parent_name`` says how to build it again.

    Raises:
        ParentError: The name is unknown, or the network does not fit the task.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> digits = SimpleNamespace(shape=(1, 8, 8), num_classes=10)
        >>> network = build_parent("mlp", digits, seed=0)
        >>> network(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if ":" not in name and name not in _PARENTS:
        raise ParentError(_unknown(name))
    with drawing_from(seed):
        network = build_from_spec(name, task) if ":" in name else _build_own(name, task)
    setattr(network, _NAME, name)
    return network


def _build_own(name: str, task: TaskLike) -> nn.Module:
    parent = _PARENTS[name]
    _, height, width = task.shape
    if min(height, width) < parent.smallest:
        raise ParentError(
            f"parent {name!r} got images of {height}×{width} pixels, expected at least "
            f"{parent.smallest}×{parent.smallest}; choose larger images, or a parent that takes "
            "any size such as mlp or resnet20"
        )
    return make_drawn(lambda: parent.make(task.shape, task.num_classes), parent.draw_linear)


def _unknown(name: str) -> str:
    closest = difflib.get_close_matches(name.lower(), _PARENTS, n=1)
    meant = f" (did you mean {closest[0]!r}?)" if closest else ""
    return (
        f"there is no parent {name!r}{meant}; choose one of {', '.join(_PARENTS)}, "
        "or package.module:factory for one of your own"
    )


def parent_for(parent: str | nn.Module | Factory, task: TaskLike, *, seed: int = 0) -> nn.Module:
    """Turn whatever a user calls a parent into a network for a task that nobody else holds.

    A name is built. A network that fits the task is copied with its weights; one that does not
    fit is built anew if `build_parent` made it. A function is called with the task.

    Args:
        parent: A name, a network (left as it is) or a function from a task to a network.
        task: What the network has to read and to tell apart.
        seed: Draws the weights of a network that is built.

    Returns:
        The network for the task.

    Raises:
        ParentError: It does not fit the task and cannot be built for it.

    Example:
        >>> from types import SimpleNamespace
        >>> network = build_parent("mlp", SimpleNamespace(shape=(1, 8, 8), num_classes=10))
        >>> parent_for(network, SimpleNamespace(shape=(3, 4, 4), num_classes=2)).fc3
        Linear(in_features=128, out_features=2, bias=True)
    """
    if isinstance(parent, str):
        return build_parent(parent, task, seed=seed)
    if isinstance(parent, nn.Module):
        return _for_task(parent, task, seed)
    if not callable(parent):
        raise ParentError(
            f"a parent of type {type(parent).__name__} was given; "
            "expected a name, a torch.nn.Module or a function from a task to a network"
        )
    with drawing_from(seed):
        label = f"the function {getattr(parent, '__name__', type(parent).__name__)}"
        return call_factory(parent, task, label)


def _for_task(network: nn.Module, task: TaskLike, seed: int) -> nn.Module:
    try:
        with drawing_from(seed):
            return copy_foreign(network, task)
    except ParentError:
        name = getattr(network, _NAME, None)
        if not isinstance(name, str) or (":" not in name and name not in _PARENTS):
            raise
    rebuilt = build_parent(name, task, seed=seed)
    # What was changed after it was built cannot be built again, and must not be lost in silence.
    if rebuilt.state_dict().keys() != network.state_dict().keys():
        raise ParentError(
            f"the network does not fit the task and no longer has the layers of {name!r}, "
            f"expected a parent as it was built; pass {name!r} or a function that builds it"
        )
    return rebuilt
