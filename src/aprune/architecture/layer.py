"""What can be said about one layer of an architecture, and about two architectures together."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """One mask in numbers.

    Attributes:
        name: the name of the parameter.
        shape: its shape; the first dimension counts units, the second inputs.
        total: the connections of the parent.
        kept: the connections of the architecture.
        units: the size of the first dimension.
        inputs: the size of the second dimension, 0 if there is none.
        units_without_input: units that no connection leads to.
        inputs_without_output: inputs that no connection leads away from.
    """

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    units: int
    inputs: int
    units_without_input: int
    inputs_without_output: int

    @property
    def density(self) -> float:
        """The fraction of connections kept."""
        return self.kept / self.total

    @property
    def sparsity(self) -> float:
        """The fraction of connections removed."""
        return 1 - self.density


@dataclass(frozen=True)
class Overlap:
    """What two architectures of one parent have in common.

    Attributes:
        shared: connections that are in both.
        jaccard: shared connections as a fraction of those in either.
        of_first: shared connections as a fraction of the first's.
        of_second: shared connections as a fraction of the second's.
        expected_by_chance: shared connections to expect of two random architectures with the same
            layer densities.
    """

    shared: int
    jaccard: float
    of_first: float
    of_second: float
    expected_by_chance: float


def measure_layer(name: str, mask: Tensor, kept: int) -> Layer:
    """Describe a mask, of which the number of connections is already known.

    Example:
        >>> import torch
        >>> layer = measure_layer("head", torch.tensor([[True, False], [False, False]]), 1)
        >>> layer.density, layer.units_without_input, layer.inputs_without_output
        (0.25, 1, 1)
    """
    units = mask.shape[0]
    inputs = mask.shape[1] if mask.ndim > 1 else 0
    fed = mask.view(units, -1).any(dim=1)
    # A kernel reads an input if any of its places does.
    used = mask.view(units, inputs, -1).any(dim=2).any(dim=0) if inputs else mask[:0]
    return Layer(
        name=name,
        shape=tuple(mask.shape),
        total=mask.numel(),
        kept=kept,
        units=units,
        inputs=inputs,
        units_without_input=units - int(fed.count_nonzero()),
        inputs_without_output=inputs - int(used.count_nonzero()),
    )


def measure_overlap(shared: int, first: int, second: int, expected: float) -> Overlap:
    """Put the counts of two architectures in relation; nothing at all is wholly shared.

    Example:
        >>> measure_overlap(shared=2, first=4, second=8, expected=1.5).jaccard
        0.2
    """
    either = first + second - shared
    return Overlap(
        shared=shared,
        jaccard=shared / either if either else 1.0,
        of_first=shared / first if first else 1.0,
        of_second=shared / second if second else 1.0,
        expected_by_chance=expected,
    )
