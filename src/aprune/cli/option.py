"""Options that several verbs share, and how their values are read."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from aprune.cli.output import complain
from aprune.errors import SettingError

if TYPE_CHECKING:
    from torch import nn

    from aprune.experiments.launch import Launcher
    from aprune.tasks import Task
    from aprune.training import Recipe

T = TypeVar("T")


def _check_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise SettingError(f"got {seed} for --seed: expected a whole number from 0 to {2**32 - 1}")
    return seed


def _check_time_limit(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise SettingError(f"got {seconds} for --time-limit: expected a number above 0")
    return seconds


def one_of(option: str, *choices: str) -> Callable[[str], str]:
    """Return a callback that refuses all other values.

    Example:
        >>> one_of("--on", "here", "ray")("ray")
        'ray'
    """

    def check(value: str) -> str:
        check_choice(value, option, choices)
        return value

    return check


Classes = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="N|A,B,…",
        help="How many classes to draw with the seed (5), or which (0,1,2 or cat,dog); else all.",
    ),
]
Images = Annotated[
    int | None,
    typer.Option("--images", metavar="N", help="Training images, balanced over the classes."),
]
Size = Annotated[
    int | None,
    typer.Option("--size", metavar="PIXELS", help="Height and width to resize images to."),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", callback=_check_seed, help="Of all that is random.")
]
Steps = Annotated[
    int | None, typer.Option("--steps", metavar="N", help="Training steps; else chosen to suit.")
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="N", help="Images a step; else chosen to suit.")
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", metavar="X", help="Peak learning rate; else chosen to suit.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of the method; aprune methods lists them."
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="NAME", help="auto (a GPU where there is one), cpu or cuda."),
]
Runs = Annotated[
    Path,
    typer.Option("--out", metavar="FOLDER", help="For everything; what is there is not redone."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        callback=_check_time_limit,
        help="Then stop; the same command does the rest.",
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="NAME",
        callback=one_of("--scale", "paper", "small"),
        help="paper, or small: digits, for a CPU.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over; else what was interrupted goes on.")
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="WHERE",
        callback=one_of("--on", "here", "ray"),
        help="here, or ray: the cluster of RAY_ADDRESS, or all of this machine.",
    ),
]
ShrinkBatch = Annotated[
    bool,
    typer.Option("--shrink-batch", help="Halve the batch if a GPU has too little memory for it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def read_classes(text: str | None, option: str = "--classes") -> int | list[str] | None:
    """Read `--classes`: one whole number is how many, a list with commas is which.

    Example:
        >>> read_classes("5"), read_classes("5,6"), read_classes("cat, dog")
        (5, ['5', '6'], ['cat', 'dog'])
    """
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return read_list(text, option)


def read_list(text: str, option: str) -> list[str]:
    """Read words separated by commas.

    Example:
        >>> read_list("ap,random", "--methods")
        ['ap', 'random']
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise SettingError(
            f"got {text!r} for {option}: expected values with commas between them, such as a,b"
        )
    return words


def read_numbers(text: str, option: str) -> list[float]:
    """Read numbers separated by commas, each of them once.

    Example:
        >>> read_numbers("0.5,0.9,0.5", "--sparsity")
        [0.5, 0.9]
    """
    try:
        return list(dict.fromkeys(float(word) for word in text.split(",")))
    except ValueError:
        raise SettingError(
            f"got {text!r} for {option}: expected a number, or several with commas between them"
        ) from None


def read_sparsities(text: str) -> list[float]:
    """Read `--sparsity`.

    Example:
        >>> read_sparsities("0.5,0.9")
        [0.5, 0.9]
    """
    from aprune.maths.select import check_sparsity

    return [check_sparsity(number) for number in read_numbers(text, "--sparsity")]


def check_choice(value: str, option: str, choices: Sequence[str]) -> None:
    """Raise a `SettingError` unless `value` is one of `choices`.

    Example:
        >>> check_choice("random", "--mismatch", ("random", "dense"))
    """
    if value not in choices:
        raise SettingError(f"got {value!r} for {option}: expected one of {', '.join(choices)}")


def launcher(place: str, device: str) -> "AbstractContextManager[Launcher]":
    """Return where runs are done: `--on`, with `--device` there.

    Example:
        >>> with launcher("here", "cpu") as chosen:
        ...     chosen.device
        device(type='cpu')
    """
    if place == "here":
        from aprune.experiments.launch import Here
        from aprune.training import choose_device

        return nullcontext(Here(choose_device(device)))
    from aprune.experiments.cluster import Cluster

    return Cluster(device)


def check_parent(name: str) -> None:
    """Raise a `ParentError` if aprune has no parent of this name; `module:factory` is tried later.

    Example:
        >>> check_parent("vgg19")
    """
    from types import SimpleNamespace

    import torch

    from aprune.parents import build_parent

    if ":" not in name:
        # Without memory for weights, so that even the largest takes no time.
        with torch.device("meta"):
            build_parent(name, SimpleNamespace(shape=(3, 32, 32), num_classes=2))


def with_room(do: "Callable[..., T]", changes: dict[str, Any], *, shrink: bool) -> "T":
    """Train, and again with half the batch as long as a GPU has no room, if the user allows that.

    Args:
        do: Trains with changes of the recipe.
        changes: Those that the user asked for.
        shrink: Whether the batch may be halved.
    """
    from aprune.errors import DeviceError
    from aprune.training.ranks import started_size

    while True:
        try:
            return do(**changes)
        except DeviceError as error:
            if error.batch is None or error.batch < 2:
                raise
            if not shrink:
                other = ", or --shrink-batch" if started_size() == 1 else ""
                raise DeviceError(f"{error} (--batch {error.batch // 2}){other}") from error
            changes = {**changes, "batch": error.batch // 2}
            complain(str(error).replace(": try", "; trying"))
        gc.collect()  # the network that did not fit may hang in a circle


def check_shrink(shrink: bool) -> None:
    """Raise a `SettingError` if the batch is to be halved by several processes, which have to agree.

    Example:
        >>> check_shrink(True)
    """
    from aprune.training.ranks import started_size

    if shrink and started_size() > 1:
        raise SettingError(
            f"--shrink-batch is for one process, and torchrun has started {started_size()}: give a"
            " --batch that fits"
        )


def check_recipe(**changes: object) -> None:
    """Raise a `SettingError` if a training cannot be done like that.

    Example:
        >>> check_recipe(steps=100, lr=None)
    """
    from aprune.training import Recipe

    Recipe(steps=1, lr=1.0).but(**changes)


def make_recipe(
    default: "Callable[[nn.Module, Task], Recipe]", parent: str, task: "Task", **changes: Any
) -> "Recipe | None":
    """Return the default recipe for this parent and task with some settings changed.

    Args:
        default: `Recipe.for_search` or `Recipe.for_transfer`.
        parent: The parent's name.
        task: What is trained on.
        changes: Settings; those that are None stay as they are.

    Returns:
        The recipe; None, which means the default, if nothing is changed.
    """
    if all(value is None for value in changes.values()):
        return None
    import torch

    from aprune.training.network import network_for

    model = network_for(parent, task, torch.device("meta"), seed=0, weights=False)
    return default(model, task).but(**changes)
