"""Parent networks: where architectures are searched, and what they are carried back into."""

from aprune.parents.build import build_parent, parent_for, parent_names
from aprune.parents.task import TaskLike

__all__ = ["TaskLike", "build_parent", "parent_for", "parent_names"]
