"""What every way of choosing connections looks like from outside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from aprune.connections import Masks, masked_state
from aprune.maths.select import keep_count, keep_largest
from aprune.tasks import Task
from aprune.training import Curve, EngineName, Recipe


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method is asked.

    Attributes:
        model: The parent on the device of the task; the method may do with it what it likes.
        names: The parameters to choose from.
        task: Its training images may be used; its test images may not.
        sparsities: Fractions to remove, in rising order.
        recipe: How weights are trained on the way.
        seed: Of everything random.
        weights: Whether to return the weights too.
        engine: How steps are run (see `training.engine`).
        progress: Whether to show a bar; None shows it on a terminal.
    """

    model: nn.Module
    names: tuple[str, ...]
    task: Task
    sparsities: tuple[float, ...]
    recipe: Recipe
    seed: int
    weights: bool = False
    engine: EngineName = "auto"
    progress: bool | None = None

    @property
    def connections(self) -> dict[str, nn.Parameter]:
        """Return the parameters to choose from, by name."""
        parameters = dict(self.model.named_parameters())
        return {name: parameters[name] for name in self.names}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return their shapes."""
        return {name: tuple(tensor.shape) for name, tensor in self.connections.items()}

    @property
    def total(self) -> int:
        """Return the number of connections."""
        return sum(tensor.numel() for tensor in self.connections.values())

    def kept(self, sparsity: float) -> int:
        """Return the number of connections that `sparsity` leaves."""
        return keep_count(self.total, sparsity)

    def keep_best(self, scores: Mapping[str, Tensor]) -> dict[float, Masks]:
        """Return the masks of the largest scores at every sparsity."""
        return {s: keep_largest(scores, self.kept(s)) for s in self.sparsities}

    def states(self, masks: Mapping[float, Masks]) -> dict[float, dict[str, Tensor]]:
        """Return the state of the network under each of some masks, if weights are asked for."""
        return {s: masked_state(self.model, m) for s, m in masks.items()} if self.weights else {}


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes:
        masks: The boolean masks of each sparsity that was asked for.
        weights: The state of the searched network when each was taken, outside its mask exactly zero,
            if asked for.
        curves: The training loss, one curve a round.
        passes: Forward and backward passes that moved no weight. Each counts as a step, however few
            images it sees.
        searches: How many searches these are, if each sparsity had to be searched for by itself.
        recipe: How weights were trained on the way, if any were.
        trained: Whether the network that was searched is now the sparsest architecture, trained.
        notes: What else was measured on the way, by name, for the provenance.
    """

    masks: Mapping[float, Masks]
    weights: Mapping[float, dict[str, Tensor]] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    passes: int = 0
    searches: int = 1
    recipe: Recipe | None = None
    trained: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Training steps that an architecture took: its cost."""
        return (sum(len(curve.loss) for curve in self.curves) + self.passes) // self.searches


class Method(Protocol):
    """A way to choose connections; a frozen dataclass of its settings.

    Attributes:
        name: One lower-case word, as on the command line.
        summary: What it does, in one line.
        source: The paper that it comes from.
        cost: What a search takes, in words.
        nested: Whether one search gives all sparsities, each a part of the ones before; with the
            default settings.
        trains: Whether weights are trained on the way, so that there are some to keep.
        looks: Whether it looks at images.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    cost: ClassVar[str]
    nested: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    looks: ClassVar[bool] = True
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def needs_weights(self) -> bool:
        """Whether the search starts from the weights that the parent comes with."""
        return False

    @property
    def rewinds(self) -> bool:
        """Whether the search starts from He's weights, drawn with its seed: one can go back to them."""
        return True

    def search(self, problem: Problem) -> Outcome:
        """Choose connections for each sparsity."""
        ...
