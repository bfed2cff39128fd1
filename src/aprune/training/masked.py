"""Training under a mask, with nothing computed twice.

A VGG pools every image to 7 × 7 places. What is left of a 32 × 32 image there is one place, so its first
linear layer sees 49 copies of each input, and all copies get the same gradient. SGD is linear in the
gradient, so the copies of an input move alike: the layer is trained as one with a single weight
W = Σ m∘θ for each unit and input, and the copies are read off at the end. For VGG19 that leaves 39 M of
140 M weights to be trained.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from aprune.maths.schedules import find_schedule
from aprune.parents.vgg import VGG
from aprune.tasks import Task
from aprune.training.fit import Curve, Hook, KeepMasked, fit
from aprune.training.fused import fused
from aprune.training.recipe import Recipe


def fit_masked(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    hooks: Sequence[Hook] = (),
    title: str = "training",
    progress: bool | None = None,
    fuse: bool = False,
) -> Curve:
    """Train `model` in place with the weights outside `masks` at exactly zero.

    Does what `fit` does with a `KeepMasked`, within rounding. Hooks see the network as it is: with any
    of them nothing is merged or fused.

    `masks` go by the name of a parameter; without any the network is dense. With `fuse` the weights are
    moved in one pass (see `fused`). The other arguments are those of `fit`.
    """
    copies = 1 if hooks else copies_of_inputs(model, task, recipe)
    with merged_copies(model, masks, copies, recipe) as left:
        if fuse and not hooks:
            with fused(model, recipe, masks=left) as update:
                return fit(
                    model, task, recipe, seed=seed, update=update, title=title, progress=progress
                )
        keep = [KeepMasked(model, left)] if left else []
        return fit(
            model, task, recipe, seed=seed, hooks=[*keep, *hooks], title=title, progress=progress
        )


def copies_of_inputs(model: nn.Module, task: Task, recipe: Recipe) -> int:
    """Return how often the first linear layer sees each of its inputs, if they can be merged.

    Example:
        >>> from aprune import Recipe, build_parent, load_task
        >>> digits = load_task("digits")
        >>> copies_of_inputs(build_parent("mlp", digits), digits, Recipe(steps=1, lr=0.1))
        1
    """
    if type(model) is not VGG or recipe.optimiser != "sgd":
        return 1
    trains = model.classifier[0].weight.requires_grad
    return model.copies(task.shape) if trains else 1


@contextlib.contextmanager
def merged_copies(
    model: nn.Module, masks: Mapping[str, Tensor], copies: int, recipe: Recipe
) -> Iterator[dict[str, Tensor]]:
    """Merge the equal inputs of a VGG's first linear layer for the block, if there are any.

    Yields:
        The masks that are still needed: the merged layer keeps its own.
    """
    left = dict(masks)
    if copies == 1:
        yield left
        return
    assert isinstance(model, VGG)
    pool, linear = model.avgpool, model.classifier[0]
    assert isinstance(linear, nn.Linear)
    merged = MergedLinear(linear, left.pop("classifier.0.weight", None), copies)
    model.avgpool, model.classifier[0] = nn.Identity(), merged
    try:
        yield left
    finally:
        model.avgpool, model.classifier[0] = pool, linear
    merged.write_back(linear, decay_of_start(recipe))


class MergedLinear(nn.Module):
    """A linear layer whose inputs come in runs of equal copies, with one weight for each run.

    The weight of a run with n connections is W = V·√n. A step of SGD on V moves W by n times the
    gradient, just as n connections together would move, and the gradient of V has their norm: so
    weight decay, momentum and clipping do what they do to the whole layer.
    """

    root: Tensor

    def __init__(self, linear: nn.Linear, mask: Tensor | None, copies: int) -> None:
        super().__init__()
        units = linear.weight.shape[0]
        weight = linear.weight.detach()
        there = torch.ones_like(weight) if mask is None else mask.to(weight)
        count = there.view(units, -1, copies).sum(-1)
        self.start = (weight * there).view(units, -1, copies)
        self.there = there.view(units, -1, copies)
        self.count = count
        self.register_buffer("root", count.sqrt())
        self.value = nn.Parameter(self.start.sum(-1) / count.clamp(min=1).sqrt())
        self.bias = linear.bias  # the very same parameter

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the whole layer would for `inputs` repeated."""
        return nn.functional.linear(inputs, self.value * self.root, self.bias)

    @torch.no_grad()
    def write_back(self, linear: nn.Linear, decay: float) -> None:
        """Give every copy its weight: the decayed one it started from, and what all have gained."""
        change = self.value * self.root - decay * self.start.sum(-1)
        gained = change / self.count.clamp(min=1)
        weight = (decay * self.start + gained.unsqueeze(-1)) * self.there
        linear.weight.copy_(weight.view_as(linear.weight))


def decay_of_start(recipe: Recipe) -> float:
    """Return how much of an initial weight is left after a training without any gradient.

    Example:
        >>> decay_of_start(Recipe(steps=2, lr=0.5, schedule="constant", momentum=0.0, weight_decay=0.2))
        0.81
    """
    schedule = find_schedule(recipe.schedule)
    weight, velocity = 1.0, 0.0
    for step in range(recipe.steps):
        force = recipe.weight_decay * weight
        velocity = recipe.momentum * velocity + force
        push = force + recipe.momentum * velocity if recipe.nesterov else velocity
        weight -= recipe.lr * schedule(step, recipe.steps) * push
    return weight
