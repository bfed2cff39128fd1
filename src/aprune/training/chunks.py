"""How the tensors of a network are cut up for the kernels, and where in them a search looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aprune.training.shadow import Shadowed

_BLOCK = 1024  # connections of a piece
_PIECES = 8  # of a chunk, in large networks; one in others, which want many chunks at once
_LARGE = 2**24  # connections of a large network


@dataclass
class Launch:
    """Chunks that one launch goes over, a place for what it writes, and what they have in common."""

    chunks: Tensor
    out: Tensor
    constants: dict[str, int | bool]


_Chunks = dict[frozenset[tuple[str, int]], list[tuple[int, int]]]


def cut(entries: Sequence[Shadowed], device: torch.device) -> tuple[list[Launch], list[Launch]]:
    """Cut all tensors into chunks of each kind, whole ones and rests: to be measured, and updated.

    A layer with merged inputs is cut by inputs; its update works on a piece of few of them at a time,
    with all their copies.
    """
    measured: _Chunks = {}
    updated: _Chunks = {}
    pieces = _PIECES if sum(entry.theta.numel() for entry in entries) >= _LARGE else 1
    for number, entry in enumerate(entries):
        inputs = entry.theta.numel() // entry.copies
        units = _BLOCK // entry.copies // 4 * 4  # so that a piece begins where four numbers fit
        shape = {"UNITS": units, "RUNS": 1 << (units - 1).bit_length()}
        shadow = {"SHADOW": entry.leaf is not entry.theta}
        for chunks, kind, step in (
            (measured, entry.kind, _BLOCK),
            (updated, entry.kind | shape | shadow, units),
        ):
            done = 0
            for whole, many in ((True, pieces), (False, 1)):
                end = inputs // (many * step) * many * step if whole else inputs
                found = [(number, start) for start in range(done, end, many * step)]
                sort = kind | {"BLOCK": _BLOCK, "EVEN": whole, "PIECES": many}
                chunks.setdefault(frozenset(sort.items()), []).extend(found)
                done = end
    return _launches(measured, 2, torch.float32, device), _launches(updated, 1, torch.int32, device)


def _launches(
    chunks: _Chunks, columns: int, dtype: torch.dtype, device: torch.device
) -> list[Launch]:
    return [
        Launch(
            torch.tensor(places, device=device),
            torch.zeros((len(places), columns), dtype=dtype, device=device),
            dict(kind),
        )
        for kind, places in chunks.items()
        if places
    ]


def locate(
    entries: Mapping[str, Shadowed],
    w: Mapping[str, Tensor],
    places: Sequence[tuple[Tensor, ...] | None],
) -> Tensor:
    """Return the places that a search looks at: tensor, offset in it and in its gradient.

    Args:
        entries: All tensors that are trained, by name.
        w: The mask parameters, by the name of the weight.
        places: Indices into each of them; None means everywhere.
    """
    numbers = {name: number for number, name in enumerate(entries)}
    found = []
    for (name, tensor), here in zip(w.items(), places, strict=True):
        entry = entries[name]
        if here is None:
            everywhere = torch.arange(tensor.numel(), device=tensor.device)
            here = torch.unravel_index(everywhere, tensor.shape)
        pairs = zip(here, entry.theta.stride(), strict=True)
        offset = sum((index * stride for index, stride in pairs), torch.zeros_like(here[0]))
        narrow = entry.leaf.dtype == torch.bfloat16
        number = torch.full_like(offset, -1 - numbers[name] if narrow else numbers[name])
        found.append(torch.stack([number, offset, offset // entry.copies], 1))
    return torch.cat(found).contiguous()
