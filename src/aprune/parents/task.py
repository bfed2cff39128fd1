"""What a parent has to know of a task, and no more."""

from typing import Protocol, TypeAlias

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of one image."""


class TaskLike(Protocol):
    """Anything that knows the shape of its images and how many classes they fall into.

    Example:
        >>> from types import SimpleNamespace
        >>> task: TaskLike = SimpleNamespace(shape=(1, 8, 8), num_classes=10)
        >>> task.num_classes
        10
    """

    @property
    def shape(self) -> Shape:
        """Channels, height and width of one image."""
        ...

    @property
    def num_classes(self) -> int:
        """How many outputs the network needs."""
        ...
