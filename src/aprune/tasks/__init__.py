"""Tasks: data sets as tensors, the choice of classes and images, and where the data are."""

from collections.abc import Sequence

from aprune.tasks.library import (
    DataCheck,
    DataDescription,
    check,
    describe_data,
    fetch,
    read_dataset,
    task_names,
)
from aprune.tasks.subset import Split, check_size, check_split, make_task
from aprune.tasks.task import Augment, Task

__all__ = [
    "Augment",
    "DataCheck",
    "DataDescription",
    "Split",
    "Task",
    "check",
    "describe_data",
    "fetch",
    "load_task",
    "task_names",
]


def load_task(
    name: str,
    *,
    classes: int | Sequence[int] | Sequence[str] | None = None,
    images: int | None = None,
    seed: int = 0,
    size: int | None = None,
    split: Split = "train",
) -> Task:
    """Load a data set, or a part of it, as a task.

    Args:
        name: "digits", "mnist", "cifar10", "cifar100", or "folder:PATH" for images of your own.
        classes: How many classes to draw with the seed, or which ones, as numbers or names in the
            order of the new labels; by default all that have images.
        images: How many training images, balanced over the classes; by default all. Fewer images
            are always among more of the same seed. The test images stay whole, but see `split`.
        seed: Decides which classes and which images are drawn, in the same way on every machine.
        size: Height and width to resize to; by default as they are, for a folder 32.
        split: "test" makes the task of the data set's test images alone. `images` of them, by
            default half, are its training images; all others are its test images. "tuning" does the
            same with the data set's training images: a task to choose settings by, which learns from
            the images that "train" gives and holds no test image.

    Returns:
        The task, on the CPU.

    Raises:
        TaskError: The data are missing or damaged, or more is asked of them than there is.

    Example:
        >>> task = load_task("digits", classes=5, images=50, seed=0)
        >>> task.train_images.shape, task.train_labels.bincount().tolist()
        (torch.Size([50, 1, 8, 8]), [10, 10, 10, 10, 10])
        >>> unseen = load_task("digits", images=200, split="test")
        >>> len(unseen.train_labels), len(unseen.test_labels)
        (200, 399)
    """
    check_size(size)
    check_split(split)
    return make_task(
        read_dataset(name, size), classes=classes, images=images, seed=seed, size=size, split=split
    )
