import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from aprune.errors import SettingError, TaskError
from aprune.tasks import Augment, Task, load_task
from aprune.tasks.dataset import DataSet
from aprune.tasks.subset import make_task


def make(train: torch.Tensor, labels: list[int] | None = None, **changes: object) -> Task:
    numbers = torch.tensor([0, 1] * (len(train) // 2) if labels is None else labels)
    fields = {
        "name": "made",
        "train_images": train,
        "train_labels": numbers,
        "test_images": train,
        "test_labels": numbers,
        "classes": ("a", "b"),
        "augment": Augment(),
        "provenance": {},
    }
    return Task(**(fields | changes))  # type: ignore[arg-type]


def test_mean_and_std_are_those_of_the_training_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 6), dtype=np.uint8)
    task = make(torch.from_numpy(pixels), test_images=torch.zeros(40, 3, 5, 6, dtype=torch.uint8))
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(task.mean.numpy(), scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(task.std.numpy(), scaled.std((0, 2, 3)), rtol=1e-6)
    assert task.mean.dtype == task.std.dtype == torch.float32
    assert task.mean is task.mean


def test_by_hand() -> None:
    # Two pixels of 0 and two of 255 a channel: mean and deviation are both one half.
    task = make(torch.tensor([0, 255, 255, 0], dtype=torch.uint8).reshape(4, 1, 1, 1))
    assert task.mean.tolist() == [0.5]
    assert task.std.tolist() == [0.5]


def test_std_of_a_constant_channel_is_guarded() -> None:
    task = make(torch.full((4, 1, 2, 2), 51, dtype=torch.uint8))
    assert task.mean.tolist() == pytest.approx([0.2])
    assert task.std.tolist() == pytest.approx([1 / 255])


def test_a_task_is_immutable_and_moves_as_a_whole() -> None:
    task = load_task("digits", classes=[1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.name = "other"  # type: ignore[misc]
    moved = task.to(torch.device("cpu"))
    assert torch.equal(moved.train_images, task.train_images)
    assert moved.mean.device.type == "cpu"


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_hold_out_splits_the_training_images_and_forgets_the_test(
    numbered: Callable[..., DataSet], fraction: float
) -> None:
    data = numbered([10, 20, 0, 3])
    task = make_task(data)
    part = task.hold_out(fraction, seed=1)
    kept, held = (
        {tuple(image.flatten().tolist()) for image in images}
        for images in (part.train_images, part.test_images)
    )
    everything = {tuple(image.flatten().tolist()) for image in task.train_images}
    assert kept | held == everything
    assert not kept & held
    expected = [min(max(round(fraction * n), 1), n - 1) for n in (10, 20, 3)]
    assert part.test_labels.bincount(minlength=3).tolist() == expected
    # Pixel (0, 0) holds the original class: labels went along with their images.
    original = torch.tensor([0, 1, 3])
    assert torch.equal(original[part.test_labels], part.test_images[:, 0, 0, 0].long())
    assert torch.equal(original[part.train_labels], part.train_images[:, 0, 0, 0].long())


def test_hold_out_depends_on_the_seed_alone() -> None:
    task = load_task("digits", images=100)
    one, again, other = (task.hold_out(0.3, seed) for seed in (5, 5, 6))
    assert torch.equal(one.test_images, again.test_images)
    assert not torch.equal(one.test_images, other.test_images)
    assert one.provenance["held_out"] == {"fraction": 0.3, "seed": 5}
    assert one.provenance["checksum"] == task.provenance["checksum"]
    json.dumps(one.provenance)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_hold_out_wants_a_fraction(fraction: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        load_task("digits").hold_out(fraction, seed=0)


def test_hold_out_needs_two_images_of_each_class() -> None:
    with pytest.raises(TaskError, match="class 3 of digits has 1 training image"):
        load_task("digits", classes=[3, 4], images=2).hold_out(0.5, seed=0)


IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a",)}, "at least 2"),
        ({"train_images": IMAGES.float()}, "float32 images"),
        ({"train_images": IMAGES[0]}, r"of shape \(1, 2, 2\)"),
        ({"train_labels": torch.zeros(4)}, "float32 labels"),
        ({"train_labels": None}, "training part of task made has no labels; give a tensor of them"),
        ({"test_labels": [0, 1, 0, 1]}, "test part of task made has labels of type list; give a"),
        ({"train_images": None}, "training part of task made has no images"),
        ({"test_labels": torch.zeros(3, dtype=torch.int64)}, "for 4 images"),
        ({"test_labels": torch.tensor([0, 1, 2, 0])}, "labels from 0 to 2"),
        ({"train_labels": torch.tensor([0, -1, 1, 0])}, "labels from -1 to 1"),
        ({"test_images": torch.zeros(4, 1, 2, 3, dtype=torch.uint8)}, "make them alike"),
        ({"test_images": IMAGES[:0], "test_labels": torch.zeros(0).long()}, "at least 1"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(IMAGES, **changes)
