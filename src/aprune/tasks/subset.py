"""Making a task of a data set: which classes, which images, which size."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Literal, get_args

import torch
import torch.nn.functional as F

from aprune.errors import TaskError
from aprune.tasks.dataset import DataSet
from aprune.tasks.draw import shuffled
from aprune.tasks.task import Task

Split = Literal["train", "test", "tuning"]
LARGEST_SIZE = 1024
_CHUNK = 1024  # images resized at once, so that their float copies stay small


def make_task(
    data: DataSet,
    *,
    classes: int | Sequence[int] | Sequence[str] | None = None,
    images: int | None = None,
    seed: int = 0,
    size: int | None = None,
    split: Split = "train",
) -> Task:
    """Choose classes and training images of a data set.

    The test images of the classes stay whole, unless the task is made of one part alone.

    Args:
        data: Where to choose from.
        classes: How many classes to draw, or which (numbers or names, in the order of the new
            labels); all that are there by default.
        images: Number of training images, balanced over the classes; all by default, and half of
            the part that the task is made of if `split` is "test" or "tuning".
        seed: Decides what is drawn.
        size: Height and width to resize to; as they are by default.
        split: "test" makes the task of the test images alone: those that are not chosen to train
            on are its test images. "tuning" makes it of the training images alone in the same way:
            it learns from the same images as with "train", and settings may be chosen by it.

    Returns:
        The task, with labels 0 … K − 1.

    Example:
        >>> from aprune.tasks.digits import read_digits
        >>> make_task(read_digits(), classes=["7", "2"], images=10).classes
        ('7', '2')
        >>> part = make_task(read_digits(), images=300, split="test")
        >>> len(part.train_labels), len(part.test_labels), len(read_digits().test_labels)
        (300, 299, 599)
    """
    check_size(size)
    check_split(split)
    chosen = choose_classes(data, classes, seed)
    if split == "test":
        data = replace(data, train_images=data.test_images, train_labels=data.test_labels)
    elif split == "tuning":
        data = replace(data, test_images=data.train_images, test_labels=data.train_labels)
    if split != "train":
        images = _leave_some(data, chosen, images, seed, split)
    train = choose_images(data, chosen, images, seed)
    test = torch.isin(data.test_labels, torch.tensor(chosen)).nonzero().flatten()
    if split != "train":
        test = test[~torch.isin(test, train)]
    renumber = torch.full((len(data.classes),), -1)
    renumber[chosen] = torch.arange(len(chosen))
    return Task(
        name=data.name,
        train_images=resize(_take(data.train_images, train), size),
        train_labels=renumber[data.train_labels[train]],
        test_images=resize(_take(data.test_images, test), size),
        test_labels=renumber[data.test_labels[test]],
        classes=tuple(data.classes[label] for label in chosen),
        augment=data.augment,
        provenance={
            "data": data.name,
            "checksum": data.checksum,
            "classes": chosen,
            "images": len(train),
            "seed": int(seed),
            "size": None if size is None else int(size),
        }
        | ({"split": split} if split != "train" else {}),
    )


def choose_classes(
    data: DataSet, classes: int | Sequence[int] | Sequence[str] | None, seed: int
) -> list[int]:
    """Return the original numbers of the classes asked for, in the order of their new labels.

    Args:
        data: Where to choose from.
        classes: How many, or which; see `make_task`.
        seed: Decides which are drawn.

    Returns:
        Numbers into `data.classes`; drawn ones are sorted.

    Example:
        >>> from aprune.tasks.digits import read_digits
        >>> choose_classes(read_digits(), ["8", "1"], seed=0)
        [8, 1]
    """
    present = data.present
    if classes is None:
        chosen = present
    elif (number := _whole(classes)) is not None:
        if number > len(present):
            raise TaskError(
                f"got {number} classes to draw; {data.name} has images of {len(present)}, so ask"
                f" for at most {len(present)}"
            )
        order = shuffled(len(present), seed, "classes")[: max(number, 0)]
        chosen = sorted(present[index] for index in order.tolist())
    elif isinstance(classes, Sequence) and not isinstance(classes, str | bytes):
        chosen = [_find_class(data, present, wanted) for wanted in classes]
    else:
        raise TaskError(
            f"got {classes!r} as classes; give a number of classes, or a list of numbers or names"
        )
    if len(chosen) < 2:
        raise TaskError(f"got {len(chosen)} class(es) of {data.name}; choose at least 2")
    if len(set(chosen)) < len(chosen):
        twice = next(label for label in chosen if chosen.count(label) > 1)
        raise TaskError(
            f"class {data.classes[twice]} is given more than once; name each class once"
        )
    return chosen


def choose_images(
    data: DataSet, classes: Sequence[int], images: int | None, seed: int
) -> torch.Tensor:
    """Return the indices of the training images to use, in the order of the data set.

    Images are dealt out to the classes in turn, each class in an order of its own that depends on
    the seed: so the counts differ by at most one, and fewer images are always among more.

    Args:
        data: Where to choose from.
        classes: Original numbers of the classes.
        images: How many in all; `None` for all there are.
        seed: Decides which are drawn.

    Returns:
        Sorted indices into `data.train_images`.

    Example:
        >>> from aprune.tasks.digits import read_digits
        >>> few, many = (choose_images(read_digits(), [0, 1], n, seed=3) for n in (5, 50))
        >>> set(few.tolist()) < set(many.tolist())
        True
    """
    members = [(data.train_labels == label).nonzero().flatten() for label in classes]
    if images is None:
        return torch.cat(members).sort().values
    wanted = _whole(images)
    if wanted is None or wanted < len(classes):
        raise TaskError(
            f"got {images!r} training images for {len(classes)} classes; give a whole number of at"
            f" least {len(classes)}, one for each class"
        )
    turns = _turns(len(classes), seed)
    most = _most([len(member) for member in members], seed)
    if wanted > most:
        there = sum(len(member) for member in members)
        raise TaskError(
            f"got {wanted} training images; {data.name} has {there} of these {len(classes)} classes"
            f"{'' if most == there else f', {most} when balanced'}: ask for at most {most}, or"
            " leave the number out to use all"
        )
    share, rest = divmod(wanted, len(classes))
    picked = []
    for label, member, turn in zip(classes, members, turns, strict=True):
        order = shuffled(len(member), seed, "images", label)
        picked.append(member[order[: share + (turn < rest)]])
    return torch.cat(picked).sort().values


def resize(images: torch.Tensor, size: int | None) -> torch.Tensor:
    """Return uint8 images of `size` × `size` pixels, bilinear and antialiased.

    Args:
        images: uint8 tensor [N, C, H, W].
        size: New height and width; `None` changes nothing.

    Returns:
        A uint8 tensor [N, C, size, size].

    Example:
        >>> resize(torch.full((2, 3, 8, 8), 200, dtype=torch.uint8), 4)[0, 0, 0].tolist()
        [200, 200, 200, 200]
    """
    if size is None or tuple(images.shape[2:]) == (size, size):
        return images
    parts = [
        F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for part in torch.split(images, _CHUNK)
    ]
    return torch.cat(parts)


def check_size(size: int | None) -> None:
    """Raise a `TaskError` unless `size` is `None` or a sensible number of pixels.

    Example:
        >>> check_size(32)
    """
    if size is not None and not 1 <= (_whole(size) or 0) <= LARGEST_SIZE:
        raise TaskError(
            f"got {size!r} as the image size; give a whole number of 1 … {LARGEST_SIZE} pixels"
        )


def check_split(split: Split) -> None:
    """Raise a `TaskError` unless `split` is "train", "test" or "tuning".

    Example:
        >>> check_split("test")
    """
    if split not in get_args(Split):
        raise TaskError(f"got {split!r} as the split; give 'train', 'test' or 'tuning'")


def _turns(classes: int, seed: int) -> list[int]:
    """Return the turn of each class, which decides who gets one more if a number does not divide."""
    turns: list[int] = shuffled(classes, seed, "turns").argsort().tolist()
    return turns


def _most(sizes: Sequence[int], seed: int) -> int:
    """Return how many images can be dealt out to classes that have `sizes` of them."""
    turns = _turns(len(sizes), seed)
    return min(size * len(sizes) + turn for size, turn in zip(sizes, turns, strict=True))


def _leave_some(
    data: DataSet, classes: Sequence[int], images: int | None, seed: int, split: Split
) -> int:
    """Return how many images to train on, half by default; one of each class must be left."""
    part = "training" if split == "tuning" else "test"
    sizes = data.test_labels.bincount(minlength=len(data.classes))[list(classes)].tolist()
    smallest: int = min(sizes)
    if smallest < 2:
        raise TaskError(
            f"class {data.classes[classes[sizes.index(smallest)]]} of {data.name} has {smallest}"
            f" {part} image; split {split!r} needs at least 2 of each class, one to train on and one"
            " to test on: choose other classes"
        )
    if images is None:
        return smallest // 2 * len(classes)
    wanted, most = _whole(images), _most([size - 1 for size in sizes], seed)
    if wanted is not None and wanted > most:
        raise TaskError(
            f"got {wanted} training images of split {split!r}; {data.name} has {sum(sizes)} {part}"
            f" images of these {len(classes)} classes and one of each must be left to test on: ask"
            f" for at most {most}, or leave the number out to use half"
        )
    return images


def _take(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the chosen images, without a copy when that is all of them."""
    return images if len(chosen) == len(images) else images[chosen]


def _whole(value: object) -> int | None:
    """Return a whole number of any library as an int, and `None` for everything else."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _find_class(data: DataSet, present: Sequence[int], wanted: object) -> int:
    """Return the number of the class called `wanted`, which may be a name or a number."""
    number = _whole(wanted)
    if isinstance(wanted, str):
        if wanted in data.classes:
            number = data.classes.index(wanted)
        elif wanted.isdecimal():
            number = int(wanted)
    if number is not None and number in present:
        return number
    shown = ", ".join(f"{label} ({data.classes[label]})" for label in present[:10])
    more = f" and {len(present) - 10} more" if len(present) > 10 else ""
    raise TaskError(f"{data.name} has no images of class {wanted!r}; there are {shown}{more}")
