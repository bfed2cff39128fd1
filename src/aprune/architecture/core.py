"""The architecture itself: an immutable set of connections of a parent network."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from aprune.architecture import bits, file
from aprune.architecture.carry import carry_counts, carry_densities
from aprune.architecture.file import Content
from aprune.architecture.layer import Layer, Overlap, measure_layer, measure_overlap
from aprune.architecture.places import draw, resize
from aprune.architecture.provenance import dump_provenance, parse_provenance
from aprune.architecture.shape import check_same, check_shapes, find_misfits, fingerprint, quote
from aprune.errors import ArchitectureError, SettingError
from aprune.maths.select import keep_count, spread_in_proportion


class Architecture:
    """Which connections of a parent are there: one bit each, and no weights.

    Two architectures are equal if they have the same connections under the same names and shapes,
    wherever they come from.

    Args:
        masks: boolean tensors by parameter name, in the order of the parent; they are copied.
        provenance: anything that JSON can hold: method, settings, task, seed.

    Raises:
        ArchitectureError: if a mask is not boolean or empty, or JSON cannot hold the provenance.

    Example:
        >>> arch = Architecture({"head": torch.tensor([[True, False], [True, True]])})
        >>> arch
        Architecture(3 of 4 connections in 1 tensor, sparsity 0.25)
        >>> arch.mask("head").tolist()
        [[True, False], [True, True]]
    """

    __slots__ = ("_content", "_counts")

    _content: Content
    _counts: Mapping[str, int]

    def __init__(
        self, masks: Mapping[str, Tensor], provenance: Mapping[str, Any] | None = None
    ) -> None:
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                kind = str(mask.dtype) if isinstance(mask, Tensor) else type(mask).__name__
                raise ArchitectureError(
                    f"the mask of {quote(name)} is {kind}: expected a boolean tensor"
                )
        shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
        check_shapes(shapes)
        packed = {name: bits.pack(mask) for name, mask in masks.items()}
        self._fill(Content(shapes, packed, dump_provenance(provenance or {})))

    def _fill(self, content: Content) -> None:
        counts = {name: bits.count(packed) for name, packed in content.packed.items()}
        object.__setattr__(self, "_content", content)
        object.__setattr__(self, "_counts", counts)

    @classmethod
    def _of(cls, content: Content) -> Self:
        """Make one from content that has been checked."""
        made = cls.__new__(cls)
        made._fill(content)
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the masks, in the order of the parent."""
        return tuple(self._content.shapes)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each mask."""
        return MappingProxyType(self._content.shapes)

    @property
    def total(self) -> int:
        """The number of connections of the parent."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def kept(self) -> int:
        """The number of connections of the architecture."""
        return sum(self._counts.values())

    @property
    def density(self) -> float:
        """The fraction of connections kept."""
        return self.kept / self.total

    @property
    def sparsity(self) -> float:
        """The fraction of connections removed."""
        return (self.total - self.kept) / self.total

    @property
    def fingerprint(self) -> str:
        """A hash of names and shapes: the same for all architectures of a parent."""
        return fingerprint(self.shapes)

    @property
    def digest(self) -> str:
        """A hash of names, shapes and connections: equal architectures have equal ones.

        Example:
            >>> arch = Architecture({"head": torch.arange(4) < 2})
            >>> arch.digest == arch.with_provenance(seed=1).digest
            True
            >>> arch.digest == Architecture({"head": torch.arange(4) < 3}).digest
            False
        """
        whole = hashlib.sha256(self.fingerprint.encode())
        for packed in self._content.packed.values():
            whole.update(packed)
        return whole.hexdigest()

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the architecture comes from; a copy, as JSON gives it back."""
        return MappingProxyType(parse_provenance(self._content.provenance))

    def with_provenance(self, **more: Any) -> Self:
        """Return the same architecture with more provenance.

        Example:
            >>> arch = Architecture({"head": torch.ones(2, 2, dtype=torch.bool)}, {"seed": 0})
            >>> dict(arch.with_provenance(method="ap").provenance)
            {'seed': 0, 'method': 'ap'}
        """
        provenance = dump_provenance({**self.provenance, **more})
        return self._of(replace(self._content, provenance=provenance))

    def mask(self, name: str, device: str | torch.device = "cpu") -> Tensor:
        """Return a fresh boolean mask.

        Raises:
            ArchitectureError: if there is none of this name.
        """
        if name not in self._content.packed:
            raise ArchitectureError(
                f"there is no mask of {quote(name)}: expected a name such as {quote(self.names[0])}"
            )
        return bits.unpack(self._content.packed[name], self.shapes[name], torch.device(device))

    def masks(self, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """Return fresh boolean masks, by name."""
        return {name: self.mask(name, device) for name in self.shapes}

    def densities(self) -> dict[str, float]:
        """Return the fraction of connections that each mask keeps, by name.

        Example:
            >>> Architecture({"head": torch.tensor([[True, False], [False, False]])}).densities()
            {'head': 0.25}
        """
        return {name: self._counts[name] / math.prod(s) for name, s in self.shapes.items()}

    def layers(self) -> tuple[Layer, ...]:
        """Describe each mask: its density, its units without input, its inputs without output.

        Example:
            >>> arch = Architecture({"head": torch.tensor([[True, False], [False, False]])})
            >>> arch.layers()[0].units_without_input
            1
        """
        counts = self._counts
        return tuple(measure_layer(name, self.mask(name), counts[name]) for name in self.names)

    def empty_layers(self) -> tuple[str, ...]:
        """Name the masks without any connection: through them no signal passes."""
        return tuple(name for name, count in self._counts.items() if count == 0)

    def overlap(self, other: "Architecture") -> Overlap:
        """Compare with another architecture of the same parent.

        Raises:
            ArchitectureError: if the other belongs to another parent.

        Example:
            >>> one = Architecture({"head": torch.tensor([True, True, False, False])})
            >>> two = Architecture({"head": torch.tensor([True, False, True, False])})
            >>> one.overlap(two).shared, one.overlap(two).expected_by_chance
            (1, 1.0)
        """
        check_same(self.shapes, other.shapes)
        shared, expected = 0, Fraction(0)
        for name, shape in self.shapes.items():
            shared += bits.count_shared(self._content.packed[name], other._content.packed[name])
            expected += Fraction(self._counts[name] * other._counts[name], math.prod(shape))
        return measure_overlap(shared, self.kept, other.kept, float(expected))

    def shuffle(self, seed: int) -> Self:
        """Move the connections of each layer to random places, keeping their number.

        What a shuffled architecture still knows are the layer densities: the control experiment
        for what the places of the connections are worth.

        Args:
            seed: decides the places; the same on every machine.

        Example:
            >>> arch = Architecture({"head": torch.arange(100) < 7})
            >>> arch.shuffle(seed=0).kept
            7
        """
        packed = {
            name: draw(seed, name, self.shapes[name], count) for name, count in self._counts.items()
        }
        shuffled = self._of(replace(self._content, packed=packed))
        return shuffled.with_provenance(shuffled=int(seed))

    def adapt(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        mismatch: Literal["random", "dense"] = "random",
        sparsity: float | None = None,
        seed: int = 0,
    ) -> Self:
        """Carry the architecture to the same parent, built for another task.

        Where the shape fits, the mask is taken over. The first tensor, the last and the first
        matrix after convolutions may differ, as other channels, classes and image sizes make them.

        Args:
            shapes: the shapes of the network built for the other task.
            mismatch: what a tensor of another shape gets: random connections with the density that
                it has here (at least one), or all of them.
            sparsity: of the result, exactly: the tensors of other shapes get as many random
                connections as that leaves, in proportion to their densities here. Only where that
                is impossible do the others lose or gain some. None leaves the densities as they
                are, and so the sparsity of the whole may be another one.
            seed: decides the random places.

        Raises:
            ArchitectureError: if the network is another parent.
            SettingError: if `sparsity` leaves too little, or goes with `mismatch="dense"`.

        Example:
            >>> arch = Architecture({"a": torch.eye(4) > 0, "head": torch.arange(8).view(2, 4) < 2})
            >>> arch.adapt({"a": (4, 4), "head": (10, 4)}).layers()[1].kept
            10
        """
        if mismatch not in ("random", "dense"):
            raise SettingError(f"mismatch is {quote(mismatch)}: expected 'random' or 'dense'")
        if mismatch == "dense" and sparsity is not None:
            raise SettingError("layers that are dense leave no choice of the sparsity: give one")
        misfits = find_misfits(self.shapes, shapes)
        check_shapes(shapes)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        if sparsity is not None:
            kept = keep_count(sum(sizes.values()), sparsity)
            counts = carry_counts(self._counts, self.shapes, shapes, kept)
        else:
            counts = dict(self._counts)
            for name in misfits:
                density = Fraction(counts[name], math.prod(self.shapes[name]))
                counts[name] = max(1, round(sizes[name] * density))
                if mismatch == "dense":
                    counts[name] = sizes[name]
        changed = [name for name in shapes if name in misfits or counts[name] != self._counts[name]]
        if not changed:
            return self
        packed = dict(self._content.packed)
        for name in changed:
            if name in misfits:
                packed[name] = draw(seed, name, shapes[name], counts[name])
            else:
                packed[name] = bits.pack(resize(self.mask(name), counts[name], seed, name))
        fitting = {name: tuple(shape) for name, shape in shapes.items()}
        adapted = self._of(replace(self._content, shapes=fitting, packed=packed))
        notes: dict[str, Any] = {"tensors": changed, "mismatch": mismatch, "seed": int(seed)}
        if sparsity is not None:
            notes["sparsity"] = sparsity
        return adapted.with_provenance(adapted=notes)

    def spread_onto(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        sparsity: float | None = None,
        seed: int = 0,
    ) -> Self:
        """Carry the density of each layer, and nothing else, to another parent.

        It may be wider or deeper: convolutions go by convolutions and matrices by matrices, each by how
        far along in the network it is. The densities are then scaled to meet the sparsity exactly.

        Args:
            shapes: the shapes of the other parent, in their order.
            sparsity: of the result; that of this architecture by default.
            seed: decides the random places.

        Example:
            >>> arch = Architecture({"a": torch.arange(80) < 8, "head": torch.arange(20) < 12})
            >>> wider = arch.spread_onto({"a": (160,), "head": (40,)})
            >>> [layer.kept for layer in wider.layers()]
            [16, 24]
        """
        check_shapes(shapes)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        total = sum(sizes.values())
        kept = round(total * Fraction(self.kept, self.total))
        if sparsity is not None:
            kept = keep_count(total, sparsity)
        here = self.densities()
        densities = carry_densities(self.shapes, here, shapes)
        parts = {name: round(densities[name] * size * 2**20) for name, size in sizes.items()}
        counts = spread_in_proportion(sizes, parts, kept)
        packed = {name: draw(seed, name, shape, counts[name]) for name, shape in shapes.items()}
        fitting = {name: tuple(shape) for name, shape in shapes.items()}
        spread = self._of(replace(self._content, shapes=fitting, packed=packed))
        return spread.with_provenance(spread_onto={"seed": int(seed)})

    def save(self, path: Path | str) -> None:
        """Write the architecture to a file, by convention `….arch.safetensors`.

        Raises:
            FileError: if nothing can be written there.

        Example:
            >>> import tempfile
            >>> arch = Architecture({"head": torch.arange(100) < 7}, {"method": "by hand"})
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     arch.save(f"{folder}/small.arch.safetensors")
            ...     Architecture.load(f"{folder}/small.arch.safetensors") == arch
            True
        """
        file.write(self._content, path)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read an architecture and check everything that its file says.

        Raises:
            ArchitectureError: if the file is missing, damaged, foreign or of a newer version.
        """
        return cls._of(file.read(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[tuple[object, ...], ...]:
        # With the order of the names, which a comparison of mappings would pass over.
        return tuple(self.shapes.items()), tuple(self._content.packed.values())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an architecture cannot be changed: make a new one")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # for worker processes; the file format is that of `save`
        return type(self)._of, (self._content,)

    def __repr__(self) -> str:
        tensors = "1 tensor" if len(self.names) == 1 else f"{len(self.names)} tensors"
        return (
            f"Architecture({self.kept:,} of {self.total:,} connections in {tensors}, "
            f"sparsity {self.sparsity:.6g})"
        )
