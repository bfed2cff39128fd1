"""How weights are trained: one frozen record, the same for searches and retrainings."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from torch import nn

from aprune.connections import has_norm
from aprune.errors import SettingError
from aprune.maths.schedules import Schedule, find_schedule, name_schedule
from aprune.tasks import Task


@dataclass(frozen=True)
class Recipe:
    """How weights are trained.

    Attributes:
        steps: Number of updates.
        batch: Images a step; a task with fewer images gives all of them at each step.
        lr: Peak learning rate.
        schedule: Name of a schedule (`constant`, `hold`, `inverse_sqrt`, `one_cycle`, `warm_up`) or a
            function.
        optimiser: `sgd` or `adam` (AdamW: weight decay apart from the gradient).
        momentum: Of SGD.
        nesterov: Of SGD.
        weight_decay: Added to the gradient as weight_decay·θ (SGD), or apart from it (Adam).
        clip: Largest norm of the gradient over all weights; None lets every gradient through.
        augment: Whether training images are shifted and mirrored as their task allows.
        mixup: Up to which share another image, and its label, is laid over each training image; the
            share is drawn anew at every step. 0 leaves images alone.

    Example:
        >>> Recipe(steps=100, lr=0.1).but(batch=32).batch
        32
    """

    steps: int
    lr: float
    batch: int = 64
    schedule: str | Schedule = "one_cycle"
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    clip: float | None = 1.0
    augment: bool = True
    mixup: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise SettingError(f"{name} is {value!r}: expected a whole number from {least} on")
        if not self.lr > 0:
            raise SettingError(f"the learning rate is {self.lr!r}: expected a number above 0")
        if self.clip is not None and not self.clip > 0:
            raise SettingError(f"clip is {self.clip!r}: expected a number above 0, or None")
        for name in ("momentum", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}: expected a number from 0 on"
                )
        if not 0 <= self.mixup <= 1:
            raise SettingError(f"mixup is {self.mixup!r}: expected a share from 0 to 1")
        if self.nesterov and not self.momentum > 0:
            raise SettingError("nesterov is set without momentum: expected a momentum above 0")
        if self.optimiser not in ("sgd", "adam"):
            raise SettingError(f"unknown optimiser {self.optimiser!r}: expected sgd or adam")
        find_schedule(self.schedule)

    def but(self, **changes: object) -> Self:
        """Return this recipe with some settings changed; those given as None stay as they are."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[arg-type]

    @classmethod
    def for_search(cls, model: nn.Module, task: Task) -> Self:
        """Return the default recipe for a search: 20 epochs, and never fewer than 1,000 steps.

        The learning rate is held while connections go: what is left must be able to make up for them.
        """
        images = len(task.train_labels)
        batch = 512 if images >= 10_000 else 64
        return cls(
            steps=max(1_000, round(20 * images / batch)),
            batch=batch,
            lr=0.1 if has_norm(model) else 0.03,
            schedule="hold",
        )

    @classmethod
    def for_transfer(cls, model: nn.Module, task: Task) -> Self:
        """Return the default recipe for retraining an architecture on a small task.

        A few hundred photographs are soon known by heart. Mixing them holds that up, and leaves
        something to be learnt from long steps and large batches. Signs, which are read one way round
        only, are better left alone. Mixed images also take their time: 80 epochs of them at least. A
        network without norms takes twice as long over them, in steps half as large.
        """
        norms, mixes, batch = has_norm(model), task.augment.flip, 128
        slow, epochs = mixes and not norms, 80 if mixes else 0
        return cls(
            steps=max(3_200 if slow else 1_600, round(epochs * len(task.train_labels) / batch)),
            batch=batch,
            lr=0.05 if slow else 0.1,
            schedule="hold",
            clip=1.0 if norms else 3.0,
            mixup=0.5 if mixes else 0.0,
        )


def describe_settings(settings: Any) -> dict[str, Any]:
    """Turn a frozen dataclass into something that JSON can hold; functions become their names.

    A setting with `unless_default` in its metadata is left out at its default: what was described
    before there was such a setting keeps its name.

    Example:
        >>> describe_settings(Recipe(steps=5, lr=0.1, schedule=find_schedule("constant")))["schedule"]
        'constant'
    """
    described = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if not (field.metadata.get("unless_default") and value == field.default):
            described[field.name] = name_schedule(value) if callable(value) else value
    return described
