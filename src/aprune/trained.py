"""A trained network as a file: written sparsely, loaded again for predictions."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from aprune.architecture.bits import as_tensor, pack, packed_size, unpack, unused_bits
from aprune.architecture.shape import quote
from aprune.errors import ApruneError, FileError, ParentError
from aprune.files import check_ordinary, writing
from aprune.parents import build_parent, parent_for, parent_names
from aprune.tasks import Task
from aprune.tensor_file import pieces_of
from aprune.training import predict

_FORMAT = "aprune.model"
_VERSIONS = ("1", "2")  # without bare tensors, and with them
_WRITTEN = "a model that transfer, or find with --weights, has written"
_LARGEST_IMAGE = 2**24  # numbers; a network of the user's own is tried out with two
# What reading numbers and shapes that somebody made up can end in.
_DAMAGED = (KeyError, TypeError, ValueError, OverflowError, RuntimeError)


@dataclass(frozen=True, eq=False)
class Trained:
    """A network with all that it takes to use it.

    Attributes:
        model: An ordinary network.
        parent: Name of the parent that it was built from.
        shape: Channels, height and width of the images it takes.
        classes: Names of its outputs.
        mean: Of each channel of the training images, on the scale 0 … 1.
        std: Likewise the standard deviation.
        provenance: All that determined it.
    """

    model: nn.Module
    parent: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    provenance: Mapping[str, Any]

    @classmethod
    def of(cls, model: nn.Module, task: Task, provenance: Mapping[str, Any]) -> Self:
        """Put together what was just trained on `task`."""
        mean, std = task.mean.cpu(), task.std.cpu()
        return cls(model, name_of(model), task.shape, task.classes, mean, std, provenance)

    def predict(self, images: Tensor) -> Tensor:
        """Return the class number of each uint8 image [N, C, H, W]."""
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.shape:
            raise ApruneError(
                f"got {images.dtype} images of shape {tuple(images.shape)}: expected torch.uint8 "
                f"of shape (N, {', '.join(map(str, self.shape))})"
            )
        device = next(self.model.parameters()).device
        return predict(self.model, images.to(device), self.mean, self.std)

    def save(self, path: Path | str) -> None:
        """Write the model: of a sparse tensor only the weights that are there, and one bit a place.

        Of a tensor whose weights have one magnitude, that is one number, and one bit a weight.
        """
        tensors: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            kept = _sparsely(value.detach().cpu()) if value.dim() >= 2 else None
            parts = {"dense": value} if kept is None else kept
            tensors.update({f"{kind}:{name}": part for kind, part in parts.items()})
        tensors["mean"], tensors["std"] = self.mean, self.std
        about = {
            "parent": self.parent,
            "shape": list(self.shape),
            "classes": list(self.classes),
            "provenance": dict(self.provenance),
        }
        text = json.dumps(about, default=str)  # whatever a user's own task says of itself
        metadata = {"format": _FORMAT, "version": _version_of(tensors), "about": text}
        with writing(path) as temporary, temporary.open("wb") as file:
            file.writelines(pieces_of(metadata, tensors))


def name_of(model: nn.Module) -> str:
    """Return the name of the parent that `model` was built as; of a foreign one, its class."""
    return str(getattr(model, "parent_name", type(model).__name__))


def load_model(path: Path | str, parent: Any = None) -> Trained:
    """Load what `Result.save` wrote, for predictions.

    Args:
        path: The file.
        parent: A network of your own, or a function that builds it, if the model was not built from
            one of aprune's parents: a file may not name code to run.

    Returns:
        The network in evaluation mode, on the CPU, with its classes and all that its images need.

    Raises:
        FileError: The file is missing, damaged, foreign or does not fit.

    Example:
        >>> import tempfile
        >>> from aprune import Recipe, load_task, transfer
        >>> task, path = load_task("digits"), Path(tempfile.mkdtemp(), "digits.model.safetensors")
        >>> transfer(None, "mlp", task, recipe=Recipe(steps=5, lr=0.05), device="cpu").save(path)
        >>> load_model(path).predict(task.test_images).shape
        torch.Size([599])
    """
    try:
        check_ordinary(path)
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise FileError(f"{path} is no model of aprune's: expected {_WRITTEN}")
            if metadata.get("version") not in _VERSIONS:
                raise FileError(f"{path} was written by a newer aprune: upgrade to read it")
            if metadata["version"] != _version_of(file.keys()):
                raise ValueError("not the tensors of its version")
            about = _About(json.loads(metadata["about"]))
            if parent is None and about.parent not in parent_names():
                raise FileError(
                    f"{path} was built from {quote(about.parent)}, which is not one of aprune's "
                    "parents: say how to build it, with --parent module:factory or, in Python, with "
                    "the argument parent"
                )
            if parent is None:  # without memory for weights, which a file could ask for in vain
                with torch.device("meta"):
                    _check_sizes(file, build_parent(about.parent, about).state_dict())
            model = parent_for(about.parent if parent is None else parent, about)
            state = model.state_dict()
            _check_sizes(file, state)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        _check_kinds(tensors, state)
        model.load_state_dict(_unpack(tensors, {name: v.shape for name, v in state.items()}))
        if not tensors["mean"].shape == tensors["std"].shape == about.shape[:1]:
            raise ValueError("not one mean and deviation a channel")
        return Trained(
            model.eval(),
            about.parent,
            about.shape,
            about.classes,
            tensors["mean"],
            tensors["std"],
            about.provenance,
        )
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror or error}; expected {_WRITTEN}"
        ) from error
    except ParentError as error:
        if parent is not None:  # theirs is the better explanation
            raise
        raise FileError(_damaged(path)) from error
    except (SafetensorError, *_DAMAGED) as error:
        raise FileError(_damaged(path)) from error


def _damaged(path: Path | str) -> str:
    return f"{path} is damaged or does not fit its parent: get it anew"


class _About:
    """What the file says of itself, checked; looks like a task to whoever builds the parent."""

    def __init__(self, raw: Any) -> None:
        self.parent: str = raw["parent"]
        self.shape: tuple[int, int, int] = tuple(raw["shape"])
        self.classes: tuple[str, ...] = tuple(raw["classes"])
        self.provenance: Mapping[str, Any] = raw["provenance"]
        if not isinstance(self.parent, str) or not isinstance(self.provenance, dict):
            raise TypeError("no parent or no provenance")
        if not isinstance(raw["classes"], list) or not all(
            isinstance(n, str) for n in self.classes
        ):
            raise TypeError("classes without names")
        if len(self.shape) != 3 or not all(type(size) is int for size in self.shape):
            raise TypeError("no shape of an image")
        if min(self.shape) < 1 or max(self.shape) > 2**14 or not 1 <= len(self.classes) <= 2**20:
            raise ValueError("absurd size")
        if math.prod(self.shape) > _LARGEST_IMAGE:
            raise ValueError("absurd size")

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def _version_of(tensors: Iterable[str]) -> str:
    """Return the version that files with these tensors have: an older aprune reads what it can."""
    return _VERSIONS[any(name.startswith("signs:") for name in tensors)]


def _check_sizes(file: Any, state: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless the file has the tensors that a network needs, and no others.

    Only the header is looked at. A weight has at least a bit in the file, so that a network that is not
    much larger than its file is all that will be built.
    """
    sizes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    expected = {"mean", "std"}
    for name, value in state.items():
        parts: dict[str, list[int] | None]
        bits, signs = [packed_size(tuple(value.shape))], f"signs:{name}"
        if f"dense:{name}" in sizes:
            parts = {f"dense:{name}": list(value.shape)}
        elif signs in sizes and f"bits:{name}" not in sizes:
            parts = {signs: bits, f"scale:{name}": []}
        elif signs in sizes:
            parts = {f"bits:{name}": bits, signs: sizes[signs], f"scale:{name}": []}
        else:
            values = f"values:{name}"
            parts = {f"bits:{name}": bits, values: sizes.get(values)}
        if any(sizes.get(part) != size for part, size in parts.items()):
            raise ValueError("a tensor of another size")
        expected |= set(parts)
    if set(sizes) != expected:
        raise ValueError("a tensor too few or too many")


def _check_kinds(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless numbers are of the kind that the network has: real, or whole."""
    for key, value in tensors.items():
        kind, _, name = key.partition(":")
        if kind in ("bits", "signs"):
            continue  # looked at where they are unpacked
        wanted = state[name].dtype if name else torch.float32
        if value.dtype != wanted and not (value.is_floating_point() and wanted.is_floating_point):
            raise ValueError("numbers of another kind")


def _sparsely(value: Tensor) -> dict[str, Tensor] | None:
    """Return the parts that a tensor is stored as; None if it is stored as it is."""
    there = value != 0
    weights = value[there]
    if _is_bare(weights):
        bits = {} if bool(there.all()) else {"bits": _pack(there)}
        return {**bits, "signs": _pack(weights > 0), "scale": weights[0].abs()}
    if len(weights) < 0.9 * value.numel():
        return {"bits": _pack(there), "values": weights}
    return None


def _is_bare(weights: Tensor) -> bool:
    """Tell whether there are several weights, all of one magnitude."""
    if len(weights) < 2 or not weights.is_floating_point():
        return False
    scale = weights[0].abs()
    return bool(scale.isfinite()) and bool((weights.abs() == scale).all())


def _pack(mask: Tensor) -> Tensor:
    return as_tensor(pack(mask))


def _unpack(tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    state = {}
    for name, shape in shapes.items():
        if f"dense:{name}" in tensors:
            state[name] = tensors[f"dense:{name}"]
        elif f"signs:{name}" in tensors:
            state[name] = _unpack_bare(tensors, name, shape)
        else:
            there = _read_bits(tensors[f"bits:{name}"], shape)
            values = tensors[f"values:{name}"]
            if values.shape != (int(there.count_nonzero()),):
                raise ValueError("wrong number of values")
            state[name] = torch.zeros(shape, dtype=values.dtype)
            state[name][there] = values
    return state


def _unpack_bare(tensors: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    scale, bits = tensors[f"scale:{name}"], tensors.get(f"bits:{name}")
    if scale.dim() or not scale.is_floating_point() or not 0 < scale.item() < math.inf:
        raise ValueError("no scale")
    there = torch.ones(shape, dtype=torch.bool) if bits is None else _read_bits(bits, shape)
    signs = _read_bits(tensors[f"signs:{name}"], (int(there.count_nonzero()),))
    value = torch.zeros(shape, dtype=scale.dtype)
    value[there] = torch.where(signs, scale, -scale)
    return value


def _read_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Give a boolean for each place of a tensor of this shape."""
    if packed.dtype != torch.uint8 or packed.shape != (packed_size(tuple(shape)),):
        raise ValueError("wrong number of bits")
    octets = packed.numpy().tobytes()
    if unused_bits(octets, tuple(shape)):
        raise ValueError("a bit that belongs to no place")
    return unpack(octets, tuple(shape))
