"""Connections in random places; each layer has a stream of random numbers of its own."""

import hashlib

import torch
from torch import Tensor

from aprune.architecture import bits
from aprune.maths.select import choose_random


def draw(seed: int, name: str, shape: tuple[int, ...], kept: int) -> bytes:
    """Draw a packed mask.

    Example:
        >>> int(bits.unpack(draw(0, "head", (3, 4), 5), (3, 4)).sum())
        5
    """
    return bits.pack(choose_random({name: shape}, {name: kept}, _stream(seed, name))[name])


def resize(mask: Tensor, kept: int, seed: int, name: str) -> Tensor:
    """Add or remove connections of a mask in random places, until `kept` are there.

    Example:
        >>> resize(torch.tensor([True, True, False]), 3, seed=0, name="head").tolist()
        [True, True, True]
    """
    flat = mask.flatten()
    before = int(flat.sum())
    fewer = kept < before
    (places,) = torch.nonzero(flat if fewer else ~flat, as_tuple=True)
    number = {name: abs(kept - before)}
    chosen = choose_random({name: (len(places),)}, number, _stream(seed, name))[name]
    flat[places[chosen]] = not fewer
    return flat.view(mask.shape)


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    # The generator of the CPU takes in no more than 32 bits.
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
