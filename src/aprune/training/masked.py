"""Training under a mask, with nothing computed twice.

A VGG pools every image to 7 × 7 places. What is left of a 32 × 32 image there is one place, so its first
linear layer sees 49 copies of each input, and all copies get the same gradient. SGD is linear in the
gradient, so the copies of an input move alike: the layer is trained as one with a single weight
W = Σ m∘θ for each unit and input, and the copies are read off at the end. For VGG19 that leaves 39 M of
140 M weights to be trained.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from aprune.maths.schedules import find_schedule
from aprune.parents.vgg import VGG
from aprune.tasks import Task
from aprune.training.bare import bare_names, signs_shown
from aprune.training.engine import EngineName, Level, choose_engine, no_more_than_captured
from aprune.training.fit import Curve, Training
from aprune.training.fused import FusedUpdate
from aprune.training.hook import Hook, KeepMasked
from aprune.training.recipe import Recipe


def fit_masked(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    hooks: Sequence[Hook] = (),
    bare: bool = False,
    engine: EngineName = "auto",
    title: str = "training",
    progress: bool | None = None,
) -> Curve:
    """Train `model` in place with the weights outside `masks` at exactly zero.

    Does what `fit` does with a `KeepMasked`, within rounding. Hooks see the network as it is: with any
    of them nothing is merged or fused. Nor is anything with `bare`, which leaves one magnitude in each
    tensor that has a mask, or in all connections without masks (see `training.bare`).

    `masks` go by the name of a parameter; without any the network is dense. The other arguments are
    those of `fit`.
    """
    level = choose_engine(engine, model, recipe.steps)
    lane = Lane(model, hooks=hooks, bare=bare, engine=level)
    return lane.fit(masks, task, recipe, seed=seed, title=title, progress=progress)


class Lane:
    """A network in training whose place the next one of the same shape takes.

    Weights, masks and images are copied to where those of the one before were, so that what was
    captured for the first serves all of them.

    Args:
        model: The network; `run` trains it in place.
        hooks: Called around every step; they see the network as it is, so that nothing is merged.
        bare: Whether layers see only the signs of their connections (see `training.bare`); then
            nothing is merged either.
        engine: How a step is run (see `training.engine`); with hooks the weights are not moved in one
            pass, and bare ones are captured at most.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        hooks: Sequence[Hook] = (),
        bare: bool = False,
        engine: Level = "captured",
    ) -> None:
        self.model = model
        self._hooks = hooks
        self._bare = bare
        self._engine = no_more_than_captured(engine) if bare else engine
        self._merged: MergedLinear | None = None
        self._masked: KeepMasked | FusedUpdate | None = None
        self._training: Training | None = None

    def fit(
        self,
        masks: Mapping[str, Tensor],
        task: Task,
        recipe: Recipe,
        *,
        seed: int,
        title: str,
        progress: bool | None,
    ) -> Curve:
        """Train the network as it is now, under `masks`."""
        with self.run(masks, task, recipe, seed=seed) as training:
            return training.run(title, progress)

    @contextlib.contextmanager
    def run(
        self, masks: Mapping[str, Tensor], task: Task, recipe: Recipe, *, seed: int
    ) -> Iterator[Training]:
        """Give a training of the network as it is now, under `masks`; the block does its steps."""
        whole = self._hooks or self._bare
        copies = 1 if whole else copies_of_inputs(self.model, task, recipe)
        with (
            merged_copies(self.model, masks, copies, recipe, self._merged) as left,
            contextlib.ExitStack() as stack,
        ):
            if self._training is None:
                self._training = self._make(left, task, recipe)
            assert self._masked is not None
            self._masked.load(left)
            if isinstance(self._masked, FusedUpdate):
                stack.enter_context(self._masked.in_place())
            if self._bare:
                stack.enter_context(signs_shown(self.model, bare_names(self.model, masks)))
            self._training.start(task, recipe, seed=seed)
            yield self._training

    def _make(self, masks: Mapping[str, Tensor], task: Task, recipe: Recipe) -> Training:
        linear = self.model.classifier[0] if isinstance(self.model, VGG) else None
        self._merged = linear if isinstance(linear, MergedLinear) else None
        own = dataclasses.replace(  # the next task will be written over it
            task, train_images=task.train_images.clone(), train_labels=task.train_labels.clone()
        )
        if self._engine in ("fused", "compiled") and not self._hooks:
            self._masked = FusedUpdate(self.model, recipe, masks=masks)
            return Training(self.model, own, recipe, update=self._masked, engine=self._engine)
        self._masked = KeepMasked(self.model, masks)
        hooks = [self._masked, *self._hooks]
        return Training(self.model, own, recipe, hooks=hooks, engine=self._engine)


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
    model: nn.Module,
    masks: Mapping[str, Tensor],
    copies: int,
    recipe: Recipe,
    merged: "MergedLinear | None" = None,
) -> Iterator[dict[str, Tensor]]:
    """Merge the equal inputs of a VGG's first linear layer for the block, if there are any.

    Args:
        model: The network.
        masks: Of its weights, by name.
        copies: How often that layer sees each input.
        recipe: How it will be trained.
        merged: A merged layer of the same shape to use again.

    Yields:
        The masks that are still needed: the merged layer keeps its own.
    """
    left = dict(masks)
    if copies == 1:
        yield left
        return
    assert isinstance(model, VGG)
    linear = model.classifier[0]
    assert isinstance(linear, nn.Linear)
    merged = merged or MergedLinear(linear, copies)
    merged.load(linear, left.pop(VGG.copied, None))
    with model.without_copies():
        model.classifier[0] = merged
        try:
            yield left
        finally:
            model.classifier[0] = linear
    merged.write_back(linear, decay_of_start(recipe))


class MergedLinear(nn.Module):
    """A linear layer whose inputs come in runs of equal copies, with one weight for each run.

    The weight of a run with n connections is W = V·√n. A step of SGD on V moves W by n times the
    gradient, just as n connections together would move, and the gradient of V has their norm: so
    weight decay, momentum and clipping do what they do to the whole layer.
    """

    root: Tensor

    def __init__(self, linear: nn.Linear, copies: int) -> None:
        super().__init__()
        units = linear.weight.shape[0]
        self.start = torch.empty_like(linear.weight.detach()).view(units, -1, copies)
        self.there = torch.empty_like(self.start)
        self.count = self.start.new_empty(self.start.shape[:2])
        self.register_buffer("root", torch.empty_like(self.count))
        self.value = nn.Parameter(torch.empty_like(self.count))
        self.bias = linear.bias  # the very same parameter

    @torch.no_grad()
    def load(self, linear: nn.Linear, mask: Tensor | None) -> None:
        """Take over the weights of the whole layer that `mask` leaves."""
        if mask is None:
            self.there.fill_(1.0)
        else:
            self.there.copy_(mask.view_as(self.there))
        torch.mul(linear.weight.view_as(self.there), self.there, out=self.start)
        torch.sum(self.there, -1, out=self.count)
        torch.sqrt(self.count, out=self.root)
        self.value.copy_(self.start.sum(-1) / self.count.clamp(min=1).sqrt())

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
