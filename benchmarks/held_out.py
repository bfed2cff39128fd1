"""A small task judged on training images that it leaves unused, so that settings may be chosen by it."""

import dataclasses

import torch

import aprune as ap


def without_test_images(name: str, *, classes: int | list[int], images: int, seed: int) -> ap.Task:
    """The images of a seed to learn from, the other training images of its classes to be judged on."""
    few = ap.load_task(name, classes=classes, images=images, seed=seed)
    every = ap.load_task(name, classes=classes, seed=seed)
    taken = {image.numpy().tobytes() for image in few.train_images}
    left = torch.tensor([image.numpy().tobytes() not in taken for image in every.train_images])
    return dataclasses.replace(
        few, test_images=every.train_images[left], test_labels=every.train_labels[left]
    )
