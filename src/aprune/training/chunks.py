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


@dataclass
class Pass:
    """Launches that go over all tensors, the largest first, and all that they write."""

    launches: list[Launch]
    out: Tensor


_Chunks = dict[frozenset[tuple[str, int]], list[tuple[int, int]]]


def cut(entries: Sequence[Shadowed], device: torch.device) -> tuple[Pass, Pass]:
    """Cut all tensors into chunks of each kind, whole ones and rests: to be measured, and updated.

    A layer with merged inputs is cut by inputs; its update works on a piece of few of them at a time,
    with all their copies. The update begins with what was measured last: that may still be in a cache.
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
    backwards = {kind: places[::-1] for kind, places in updated.items()}
    return (
        _launches(measured, 2, torch.float32, device),
        _launches(backwards, 1, torch.int32, device),
    )


def _launches(chunks: _Chunks, columns: int, dtype: torch.dtype, device: torch.device) -> Pass:
    size = {kind: len(places) * dict(kind)["PIECES"] for kind, places in chunks.items()}
    kinds = sorted((kind for kind in chunks if chunks[kind]), key=lambda kind: -size[kind])
    out = torch.zeros((sum(map(len, chunks.values())), columns), dtype=dtype, device=device)
    parts = out.split([len(chunks[kind]) for kind in kinds])
    launches = [
        Launch(torch.tensor(chunks[kind], device=device), part, dict(kind))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return Pass(launches, out)


def locate(
    entries: Mapping[str, Shadowed],
    w: Mapping[str, Tensor],
    places: Sequence[tuple[Tensor, ...] | None],
) -> Tensor:
    """Return the places that a search looks at: 2⁴⁰ times the number of the tensor, plus the offset.

    Args:
        entries: All tensors that are trained, by name.
        w: The mask parameters, by the name of the weight.
        places: Indices into each of them; None means everywhere.
    """
    numbers = {name: number for number, name in enumerate(entries)}
    found = []
    for (name, tensor), here in zip(w.items(), places, strict=True):
        if here is None:
            everywhere = torch.arange(tensor.numel(), device=tensor.device)
            here = torch.unravel_index(everywhere, tensor.shape)
        offset = torch.full_like(here[0], numbers[name] << 40)
        for index, stride in zip(here, entries[name].theta.stride(), strict=True):
            offset += index * stride
        found.append(offset)
    return torch.cat(found)
