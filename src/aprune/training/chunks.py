"""How the tensors of a network are cut up for the kernels, and where in them a search looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aprune.training.shadow import Shadowed

_BLOCK = 1024  # connections of a piece
_PIECES = 2  # of a chunk
_SMALL = 2**14  # connections of a tensor that is not worth a launch for its kind


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
    """Cut all tensors into chunks, by kinds: to be measured, and updated.

    A layer with merged inputs is cut by inputs; its update works on a piece of few of them at a time,
    with all their copies. The update begins with what was measured last: that may still be in a cache.
    """
    measured: _Chunks = {}
    updated: _Chunks = {}
    for number, entry in enumerate(entries):
        size = entry.theta.numel()
        inputs = size // entry.copies
        units = _BLOCK // entry.copies // 4 * 4  # so that a piece begins where four numbers fit
        shape = {"UNITS": units, "RUNS": 1 << (units - 1).bit_length()}
        shadow = {"SHADOW": entry.leaf is not entry.theta}
        even = inputs % 4 == 0 and size > _SMALL
        for chunks, kind, step in (
            (measured, entry.kind, _BLOCK),
            (updated, entry.kind | shape | shadow, units),
        ):
            sort = kind | {"BLOCK": _BLOCK, "EVEN": even, "PIECES": _PIECES}
            found = [(number, start) for start in range(0, inputs, _PIECES * step)]
            chunks.setdefault(frozenset(sort.items()), []).extend(found)
    backwards = {kind: places[::-1] for kind, places in updated.items()}
    return (
        _launches(measured, 3, torch.float32, device),
        _launches(backwards, 1, torch.int32, device),
    )


def _launches(chunks: _Chunks, columns: int, dtype: torch.dtype, device: torch.device) -> Pass:
    kinds = sorted(chunks, key=lambda kind: -len(chunks[kind]))
    out = torch.zeros((sum(map(len, chunks.values())), columns), dtype=dtype, device=device)
    parts = out.split([len(chunks[kind]) for kind in kinds])
    launches = [
        Launch(torch.tensor(chunks[kind], device=device), part, dict(kind))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return Pass(launches, out)


def parts_of(whole: Pass, tensors: int) -> Tensor:
    """Return at which chunk of a pass each of the tensors begins, and how many chunks it has."""
    of_chunks = torch.cat([launch.chunks[:, 0] for launch in whole.launches]).cpu()
    found = [(of_chunks == number).nonzero().flatten() for number in range(tensors)]
    parts = [(int(here[0]) if len(here) else 0, len(here)) for here in found]
    return torch.tensor(parts, device=whole.out.device)


def locate(
    entries: Mapping[str, Shadowed],
    w: Mapping[str, Tensor],
    places: Sequence[Tensor | None],
    run: int,
) -> Tensor:
    """Return where a search looks: 2⁴⁰ times the number of the tensor, plus where a run begins.

    Args:
        entries: All tensors that are trained, by name.
        w: The mask parameters, by the name of the weight.
        places: Numbers of the runs in each of them; None means all.
        run: How many connections one is.
    """
    numbers = {name: number for number, name in enumerate(entries)}
    found = []
    for (name, tensor), here in zip(w.items(), places, strict=True):
        if here is None:
            here = torch.arange(-(-tensor.numel() // run), device=tensor.device)
        found.append((numbers[name] << 40) + here * run)
    return torch.cat(found)
