"""Batches: every image in its turn, moved as told, normalised as said."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aprune.tasks import Augment, Task
from aprune.training.batch import Draw, Images, Normalise, draw_batches, draw_blocks

STILL = Augment()


@pytest.fixture
def numbered() -> Callable[..., Task]:
    """A task whose image number i has the pixels 10·i, 10·i + 1, …"""

    def make(images: int, augment: Augment = STILL, channels: int = 1) -> Task:
        pixels = torch.arange(channels * 6).view(1, channels, 2, 3)
        pixels = (pixels + 10 * torch.arange(images).view(-1, 1, 1, 1)).to(torch.uint8)
        labels = torch.arange(images) % 2
        return Task("numbered", pixels, labels, pixels, labels, ("a", "b"), augment, {})

    return make


def plain(pixels: Tensor) -> Normalise:
    """Normalise nothing but the scale."""
    channels = pixels.shape[1]
    return Normalise(torch.zeros(channels), torch.full((channels,), 1 / 255))


@pytest.mark.parametrize(("images", "batch", "steps"), [(7, 3, 700), (6, 3, 20), (5, 4, 600)])
def test_every_image_comes_once_an_epoch(
    numbered: Callable[..., Task], images: int, batch: int, steps: int
) -> None:
    draws = list(draw_batches(numbered(images), batch, steps, seed=0))
    assert len(draws) == steps
    assert {len(draw.index) for draw in draws} == {batch}
    order = torch.cat([draw.index for draw in draws])
    epochs = [order[i : i + images].sort().values for i in range(0, len(order) - images, images)]
    assert all(epoch.tolist() == list(range(images)) for epoch in epochs)
    # and not always in the same order
    assert order[:images].tolist() != order[images : 2 * images].tolist()


def test_a_batch_larger_than_the_data_is_all_of_them(numbered: Callable[..., Task]) -> None:
    for draw in draw_batches(numbered(4), 64, 10, seed=0):
        assert draw.index.sort().values.tolist() == [0, 1, 2, 3]


def test_the_seed_decides_and_the_global_numbers_are_left_alone(
    numbered: Callable[..., Task],
) -> None:
    task = numbered(20, Augment(flip=True, shift=2))
    before = torch.get_rng_state()
    runs = [
        torch.cat(
            [
                t.reshape(-1)
                for draw in draw_batches(task, 4, 30, seed=seed, mixup=0.5)
                for t in draw.tensors()
            ]
        )
        for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_mixing_takes_up_to_its_share_and_leaves_the_rest_alone(
    numbered: Callable[..., Task],
) -> None:
    task = numbered(20, Augment(flip=True, shift=2))
    alone, mixed = (list(draw_batches(task, 4, 600, seed=0, mixup=m)) for m in (0.0, 0.4))
    for one, other in zip(alone, mixed, strict=True):
        assert all(map(torch.equal, one.tensors()[:-1], other.tensors()[:-1]))
        assert one.share == 0.0
    shares = torch.stack([draw.share for draw in mixed])
    assert 0 <= shares.min() < 0.02
    assert 0.38 < shares.max() <= 0.4
    assert shares.mean().item() == pytest.approx(0.2, abs=0.02)


def test_shifts_and_mirrors_cover_what_the_task_allows(numbered: Callable[..., Task]) -> None:
    draws = list(draw_batches(numbered(20, Augment(flip=True, shift=2)), 20, 60, seed=0))
    for moves in ("rows", "columns"):
        values = torch.cat([getattr(draw, moves) for draw in draws])
        assert values.unique().tolist() == [0, 1, 2, 3, 4]
    mirrored = torch.cat([draw.mirror for draw in draws]).float().mean().item()
    assert mirrored == pytest.approx(0.5, abs=0.05)
    # a row's shift says nothing about its column's
    rows, columns = (torch.cat([getattr(d, m) for d in draws]) for m in ("rows", "columns"))
    assert (rows == columns).float().mean().item() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("augment", "asked"), [(Augment(), True), (Augment(flip=True, shift=2), False)]
)
def test_nothing_moves_unless_task_and_recipe_agree(
    numbered: Callable[..., Task], augment: Augment, asked: bool
) -> None:
    task = numbered(8, augment)
    images = Images(task, augment=asked)
    images.normalise = plain(task.train_images)
    for draw in draw_batches(task, 8, 5, seed=0, augment=asked):
        x, y = images.take(draw)
        assert torch.allclose(x, task.train_images[draw.index].float())
        assert torch.equal(y, task.train_labels[draw.index])


@pytest.mark.parametrize(
    ("row", "column", "mirror", "expected"),
    [
        (1, 1, False, [[0, 1, 2], [3, 4, 5]]),  # in the middle: as it is
        (1, 1, True, [[2, 1, 0], [5, 4, 3]]),
        (0, 1, False, [[0, 0, 0], [0, 1, 2]]),  # one row down
        (2, 1, False, [[3, 4, 5], [0, 0, 0]]),  # one row up
        (1, 0, False, [[0, 0, 1], [0, 3, 4]]),  # one column right
        (1, 2, False, [[1, 2, 0], [4, 5, 0]]),
        (1, 2, True, [[0, 2, 1], [0, 5, 4]]),  # the shifted image, mirrored
        (0, 0, True, [[0, 0, 0], [1, 0, 0]]),
    ],
)
def test_moves_worked_by_hand(
    numbered: Callable[..., Task], row: int, column: int, mirror: bool, expected: list[list[int]]
) -> None:
    task = numbered(3, Augment(flip=True, shift=1), channels=2)
    images = Images(task)
    images.normalise = plain(task.train_images)
    draw = Draw(
        index=torch.tensor([0, 2]),
        rows=torch.tensor([row, 1]),
        columns=torch.tensor([column, 1]),
        mirror=torch.tensor([mirror, False]),
        share=torch.tensor(0.0),
    )
    x, y = images.take(draw)
    assert x.shape == (2, 2, 2, 3)
    wanted = torch.tensor(expected, dtype=torch.float32)
    assert torch.allclose(x[0, 0], wanted)
    # the second channel moves along: its pixels are 6 more, where there are any
    images.pixels = torch.ones_like(images.pixels)
    there = images.take(draw)[0][0, 0]
    assert torch.allclose(x[0, 1], wanted + 6 * there)
    # and the other image of the batch stays where it is
    assert torch.allclose(x[1], task.train_images[2].float())
    assert y.tolist() == [0, 0]


def test_normalising_gives_mean_zero_and_deviation_one() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 3, 4, 4), generator=generator).to(torch.uint8)
    labels = torch.arange(50) % 2
    task = Task("noise", pixels, labels, pixels, labels, ("a", "b"), Augment(), {})
    x = Normalise(task.mean, task.std)(pixels)
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    # (51/255 − 0.1)/0.2 = 0.5
    half = Normalise(torch.tensor([0.1]), torch.tensor([0.2]))
    assert half(torch.full((1, 1, 1, 1), 51, dtype=torch.uint8)).item() == pytest.approx(0.5)


def test_blocks_hold_the_same_batches(numbered: Callable[..., Task]) -> None:
    task = numbered(8, Augment(flip=True, shift=1))
    singly = list(draw_batches(task, 4, 300, seed=0, mixup=0.5))
    blocks = list(draw_blocks(task, 4, 300, seed=0, mixup=0.5))
    assert [len(block.share) for block in blocks] == [256, 44]
    for number, draw in enumerate(singly):
        block = blocks[number // 256]
        assert all(map(torch.equal, draw.tensors(), block[number % 256].tensors()))
