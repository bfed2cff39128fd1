"""Networks that others wrote: importing their factories, copying them and trying them out."""

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor, nn

from aprune.connections import uncompiled
from aprune.errors import ParentError
from aprune.parents.task import TaskLike

Factory = Callable[[TaskLike], nn.Module]
"""From a task to a network for it."""

_BUILD_FOR_TASK = "pass a function that builds it for a task"
_HEED_TASK = "build it for task.shape and task.num_classes"


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    entry = str(Path.cwd())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(entry)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def build_from_spec(spec: str, task: TaskLike) -> nn.Module:
    """Import a factory, call it with a task and check that the network fits.

    The current directory is searched first, as ``python -m`` does, for the time of the call.

    Args:
        spec: ``package.module:factory``; dots behind the colon reach into classes.
        task: What the factory is called with.

    Returns:
        The network, as the factory made it.

    Raises:
        ParentError: There is no such factory, or what it makes does not fit the task.

    Example:
        >>> from types import SimpleNamespace
        >>> task = SimpleNamespace(shape=(1, 8, 8), num_classes=2)
        >>> build_from_spec("nowhere:net", task)  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ...
        aprune.errors.ParentError: parent 'nowhere:net' could not be imported
        (ModuleNotFoundError: No module named 'nowhere'); expected package.module:factory
    """
    module, _, path = spec.partition(":")
    with _current_directory_importable():
        importlib.invalidate_caches()
        try:
            found = reduce(getattr, path.split("."), importlib.import_module(module))
        except (Exception, SystemExit) as error:  # the module is anybody's code, a script even
            raise ParentError(
                f"parent {spec!r} could not be imported ({_one_line(error)}); "
                f"expected package.module:factory{_such_as(module, path)}"
            ) from error
        if not callable(found) or isinstance(found, nn.Module):
            raise ParentError(
                f"parent {spec!r} is {_kind(found)}; expected a function from a task to a network"
            )
        return call_factory(found, task, f"parent {spec!r}")


def _such_as(module: str, path: str) -> str:
    """Suggest the module of a file, where the name of the file was given."""
    parts = Path(module.removesuffix(".py")).parts
    if not module.endswith(".py") or not all(part.isidentifier() for part in parts):
        return ""
    return f", such as {'.'.join(parts)}:{path or 'factory'}"


def call_factory(factory: Factory, task: TaskLike, label: str) -> nn.Module:
    """Call a factory with a task, copy what it returns and check that it fits.

    The copy matters where a factory hands out the same network twice.

    Args:
        factory: Makes the network.
        task: What it is called with.
        label: What an error calls the factory.

    Returns:
        A network that nobody else holds.

    Raises:
        ParentError: The factory fails, or what it returns is no network for the task.

    Example:
        >>> from types import SimpleNamespace
        >>> task = SimpleNamespace(shape=(1, 2, 2), num_classes=3)
        >>> make = lambda task: nn.Sequential(nn.Flatten(), nn.Linear(4, task.num_classes))
        >>> len(call_factory(make, task, "mine"))
        2
    """
    try:
        network = factory(task)
    except ParentError:
        raise
    except (Exception, SystemExit) as error:
        raise ParentError(
            f"{label} raised {_one_line(error)} when called with the task; "
            "expected a function from a task to a network"
        ) from error
    if not isinstance(network, nn.Module):
        raise ParentError(f"{label} returned {_kind(network)}; expected a torch.nn.Module")
    return _checked(_copied(network, label), task, label, _HEED_TASK)


def copy_foreign(network: nn.Module, task: TaskLike) -> nn.Module:
    """Copy a network that is not aprune's own and check that the copy fits the task.

    Args:
        network: Left as it is.
        task: What the copy has to read and to tell apart.

    Returns:
        The copy.

    Raises:
        ParentError: It cannot be copied, or does not fit.

    Example:
        >>> from types import SimpleNamespace
        >>> task = SimpleNamespace(shape=(1, 2, 2), num_classes=3)
        >>> copy_foreign(nn.Flatten(), task)  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ...
        aprune.errors.ParentError: the network Flatten gives an output of shape [2, 4] for two
        images of shape [1, 2, 2], expected [2, 3]; pass a function that builds it for a task
    """
    label = f"the network {type(network).__name__}"
    return _checked(_copied(network, label), task, label, _BUILD_FOR_TASK)


def _copied(network: nn.Module, label: str) -> nn.Module:
    try:
        return copy.deepcopy(uncompiled(network))
    except Exception as error:
        raise ParentError(
            f"{label} cannot be copied ({_one_line(error)}); "
            "expected one that copy.deepcopy accepts: leave out hooks and cached activations"
        ) from error


def _checked(network: nn.Module, task: TaskLike, label: str, advice: str) -> nn.Module:
    shape, expected = list(task.shape), [2, task.num_classes]
    try:
        output = _try_out(network, task)
    except Exception as error:
        raise ParentError(
            f"{label} fails on two images of shape {shape} ({_one_line(error)}), "
            f"expected an output of shape {expected}; {advice}"
        ) from error
    if not isinstance(output, Tensor) or list(output.shape) != expected:
        raise ParentError(
            f"{label} gives {_kind(output)} for two images of shape {shape}, "
            f"expected {expected}; {advice}"
        )
    return network


def _kind(thing: object) -> str:
    if isinstance(thing, Tensor):
        return f"an output of shape {list(thing.shape)}"
    return "None" if thing is None else f"an object of type {type(thing).__name__}"


@torch.no_grad()
def _try_out(network: nn.Module, task: TaskLike) -> object:
    weight = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    images = torch.zeros(2, *task.shape, dtype=weight.dtype, device=weight.device)
    # One flag a module, since some may be frozen in evaluation mode on purpose.
    modes = [(module, module.training) for module in network.modules()]
    try:
        return network.eval()(images)
    finally:
        for module, training in modes:
            module.training = training
