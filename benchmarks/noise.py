"""A task of noise, for measurements in which only the shape of the images counts."""

import torch

import aprune as ap
from aprune.tasks import Augment

CLASSES = 10


def noise(
    shape: tuple[int, int, int], images: int, *, moving: bool = True, seed: int = 0
) -> ap.Task:
    """Noise in ten classes, shifted and mirrored like CIFAR-10 if `moving`."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (images, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % CLASSES
    augment = Augment(flip=True, shift=4) if moving else Augment()
    names = tuple(f"class {k}" for k in range(CLASSES))
    return ap.Task("noise", pixels, labels, pixels, labels, names, augment, {"data": "noise"})
