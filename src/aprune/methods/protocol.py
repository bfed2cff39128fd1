"""What every way of choosing connections looks like from outside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor, nn

from aprune.tasks import Task
from aprune.training import Curve, EngineName, Recipe

Masks = dict[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes:
        masks: The boolean masks of each sparsity that was asked for.
        weights: The state of the searched network when each was taken, outside its mask exactly zero;
            empty for methods that train nothing.
        curves: The training loss, one curve a round.
        recipe: How weights were trained on the way, if any were.
        trained: Whether the network that was searched is now the sparsest architecture, trained.
    """

    masks: Mapping[float, Masks]
    weights: Mapping[float, dict[str, Tensor]] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    recipe: Recipe | None = None
    trained: bool = False

    @property
    def steps(self) -> int:
        """Training steps that the search took, its cost."""
        return sum(len(curve.loss) for curve in self.curves)


class Method(Protocol):
    """A way to choose connections; a frozen dataclass of its settings."""

    name: ClassVar[str]
    """One lower-case word, as on the command line."""

    @property
    def needs_weights(self) -> bool:
        """Whether the search starts from the weights that the parent comes with."""
        ...

    def search(
        self,
        model: nn.Module,
        connections: Sequence[str],
        task: Task,
        sparsities: Sequence[float],
        *,
        recipe: Recipe,
        seed: int,
        weights: bool = False,
        engine: EngineName = "auto",
        progress: bool | None = None,
    ) -> Outcome:
        """Choose connections of `model` for each sparsity.

        Args:
            model: The parent on the device of the task; the method may do with it what it likes.
            connections: Names of the parameters to choose from.
            task: Its training images may be used; its test images may not.
            sparsities: Fractions to remove, in rising order.
            recipe: How weights are trained on the way.
            seed: Of everything random.
            weights: Whether to return the weights too.
            engine: How steps are run (see `training.engine`).
            progress: Whether to show a bar; None shows it on a terminal.
        """
        ...


def masked_state(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of the state of `model` on the CPU, zero outside `masks`."""
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    for name, mask in masks.items():
        state[name] *= mask.cpu()
    return state
