import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aprune.errors import TaskError
from aprune.tasks import load_task
from aprune.tasks.dataset import DataSet
from aprune.tasks.digits import read_digits
from aprune.tasks.subset import choose_classes, choose_images, make_task, resize
from aprune.tasks.task import Task

digits = cache(read_digits)


@given(
    classes=st.lists(st.integers(0, 9), min_size=2, unique=True),
    few=st.integers(0, 100),
    more=st.integers(0, 100),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_images_are_balanced_exact_and_nested(
    classes: list[int], few: int, more: int, seed: int
) -> None:
    small, large = len(classes) + few, len(classes) + few + more
    one, two = (choose_images(digits(), classes, count, seed) for count in (small, large))
    assert set(one.tolist()) <= set(two.tolist())
    for chosen, count in ((one, small), (two, large)):
        assert len(set(chosen.tolist())) == count
        counts = digits().train_labels[chosen].bincount(minlength=10)
        assert counts.sum() == counts[classes].sum()
        assert counts[classes].max() - counts[classes].min() <= 1


def test_who_gets_one_more_depends_on_the_seed() -> None:
    lucky = {
        int(digits().train_labels[choose_images(digits(), [0, 1, 2], 4, seed)].mode().values)
        for seed in range(20)
    }
    assert lucky == {0, 1, 2}


def test_different_seeds_choose_different_images() -> None:
    one, two = (choose_images(digits(), range(10), 50, seed).tolist() for seed in (0, 1))
    assert len(set(one) & set(two)) < 10


def test_the_images_of_a_class_do_not_depend_on_the_other_classes() -> None:
    def of_class_three(classes: list[int]) -> list[int]:
        chosen = choose_images(digits(), classes, 5 * len(classes), seed=7)
        return chosen[digits().train_labels[chosen] == 3].tolist()

    assert of_class_three([3, 4]) == of_class_three([9, 0, 3])


def test_labels_follow_the_order_given(numbered: Callable[..., DataSet]) -> None:
    task = make_task(numbered([20, 20, 20, 20]), classes=[3, 0, 2], images=30)
    assert task.classes == ("class 3", "class 0", "class 2")
    original = torch.tensor([3, 0, 2])
    assert torch.equal(original[task.train_labels], task.train_images[:, 0, 0, 0].long())
    assert torch.equal(original[task.test_labels], task.test_images[:, 0, 0, 0].long())
    assert task.provenance["classes"] == [3, 0, 2]
    assert task.provenance["images"] == 30


def test_the_test_split_stays_whole(numbered: Callable[..., DataSet]) -> None:
    data = numbered([20, 20, 20], tests=4)
    task = make_task(data, classes=[0, 2], images=2)
    assert len(task.test_labels) == 8
    expected = data.test_images[data.test_labels != 1]
    assert torch.equal(task.test_images, expected)


def test_everything_by_default(numbered: Callable[..., DataSet]) -> None:
    data = numbered([5, 0, 9])
    task = make_task(data)
    assert torch.equal(task.train_images, data.train_images)
    assert task.classes == ("class 0", "class 2")
    assert task.train_labels.bincount().tolist() == [5, 9]
    assert task.augment == data.augment


def test_drawn_classes_are_sorted_present_and_seeded(numbered: Callable[..., DataSet]) -> None:
    data = numbered([3, 0] * 20)
    draws = [choose_classes(data, 5, seed) for seed in range(30)]
    assert all(draw == sorted(draw) and len(set(draw)) == 5 for draw in draws)
    assert {label for draw in draws for label in draw} == set(range(0, 40, 2))
    assert draws == [choose_classes(data, np.int64(5), seed) for seed in range(30)]
    assert len({tuple(draw) for draw in draws}) > 25


def test_classes_by_name_and_by_number_as_text() -> None:
    assert choose_classes(digits(), ["8", "1"], 0) == choose_classes(digits(), [8, 1], 0) == [8, 1]


def test_a_name_goes_before_a_number(numbered: Callable[..., DataSet]) -> None:
    data = numbered([3, 3, 3])
    object.__setattr__(data, "classes", ("2", "0", "x"))
    assert choose_classes(data, ["0", "2", "x"], 0) == [1, 0, 2]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (11, "at most 10"),
        (1, "at least 2"),
        (0, "at least 2"),
        (-3, "at least 2"),
        ([4], "at least 2"),
        ([], "at least 2"),
        ([1, 2, 1], "class 1 is given more than once"),
        (["1", 1], "class 1 is given more than once"),
        ([1, 10], "no images of class 10; there are 0 .0., 1 .1."),
        ([1, -1], "no images of class -1"),
        (["cat", "dog"], "no images of class 'cat'"),
        ([1, 2.5], "no images of class 2.5"),
        ([True, 2], "no images of class True"),
        ("12", "got '12' as classes"),
        (True, "got True as classes"),
        (2.0, "got 2.0 as classes"),
    ],
)
def test_impossible_classes_are_refused(classes: object, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make_task(digits(), classes=classes)  # type: ignore[arg-type]


def test_a_class_without_images_is_unknown(numbered: Callable[..., DataSet]) -> None:
    with pytest.raises(TaskError, match=r"no images of class 1; there are 0 \(class 0\), 2"):
        make_task(numbered([3, 0, 3]), classes=[0, 1])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            1000,
            r"got 1000 training images; numbered has 25 of these 2 classes, 2[01] when balanced",
        ),
        (1, "at least 2, one for each class"),
        (-5, "at least 2"),
        (2.5, "got 2.5"),
        (True, "got True"),
    ],
)
def test_impossible_numbers_of_images_are_refused(
    numbered: Callable[..., DataSet], images: int, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        make_task(numbered([10, 15]), images=images)


def test_the_most_that_the_error_names_can_be_had(numbered: Callable[..., DataSet]) -> None:
    data = numbered([10, 12, 15])
    for seed in range(10):
        with pytest.raises(TaskError, match="ask for at most") as caught:
            make_task(data, images=37, seed=seed)
        most = int(str(caught.value).partition("at most ")[2].partition(",")[0])
        assert 30 <= most <= 32
        assert len(make_task(data, images=most, seed=seed).train_labels) == most
        with pytest.raises(TaskError):
            make_task(data, images=most + 1, seed=seed)


def test_all_images_of_an_even_data_set_can_be_asked_for(numbered: Callable[..., DataSet]) -> None:
    data = numbered([6, 6, 6])
    assert torch.equal(make_task(data, images=18).train_images, data.train_images)
    with pytest.raises(TaskError, match="has 18 of these 3 classes: ask for at most 18"):
        make_task(data, images=19)


def test_resizing_by_hand() -> None:
    # Halving four columns with the triangle filter: weights 3, 3, 1 for the pixels in reach, so the
    # left one of (0, 0, 80, 80) is 80/7 = 11.4 and the right one 480/7 = 68.6.
    images = torch.tensor([0, 0, 80, 80], dtype=torch.uint8).expand(1, 1, 4, 4)
    assert resize(images, 2).tolist() == [[[[11, 69], [11, 69]]]]


def test_size_reaches_training_and_test_images() -> None:
    task = load_task("digits", size=16)
    assert task.shape == (1, 16, 16)
    assert task.test_images.shape[2:] == (16, 16)
    assert task.provenance["size"] == 16
    assert task.train_images.dtype == torch.uint8
    assert torch.equal(load_task("digits", size=8).train_images, digits().train_images)


@pytest.mark.parametrize("size", [0, -1, 5000, 2.5, True])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(TaskError, match="1 … 1024 pixels"):
        load_task("digits", size=size)


def test_provenance_is_json_whatever_the_numbers_came_as() -> None:
    task = load_task(
        "digits",
        classes=np.array([4, 2]).tolist(),
        images=np.int64(9),  # type: ignore[arg-type]
        seed=np.int64(3),  # type: ignore[arg-type]
        size=np.int64(4),  # type: ignore[arg-type]
    )
    read = json.loads(json.dumps(task.provenance))
    checksum = digits().checksum
    assert read == {
        "data": "digits",
        "checksum": checksum,
        "classes": [4, 2],
        "images": 9,
        "seed": 3,
        "size": 4,
    }


Row = tuple[int, ...]


def rows(images: torch.Tensor) -> list[Row]:
    return [tuple(row) for row in images.flatten(1).tolist()]


@pytest.fixture
def marked(numbered: Callable[..., DataSet]) -> Callable[[list[int]], DataSet]:
    """Data with 4 training images and so many test images of each class, no two images alike."""

    def make(tests: list[int]) -> DataSet:
        many = numbered(tests)
        test_images = many.train_images.clone()
        test_images[:, 1, 0, 1] = 1  # pixel (1, 0, 1) is 0 in all training images
        few = numbered([4 if count else 0 for count in tests])
        data = replace(few, test_images=test_images, test_labels=many.train_labels, checksum="")
        everything = rows(data.train_images) + rows(data.test_images)
        assert len(set(everything)) == len(everything)
        return data

    return make


@pytest.mark.parametrize("images", [None, 3, 7, 20, 27])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_task_of_test_images_has_each_of_them_once_and_no_other(
    marked: Callable[[list[int]], DataSet], images: int | None, seed: int
) -> None:
    data = marked([10, 12, 0, 11, 15])
    task = make_task(data, classes=[4, 0, 3], images=images, seed=seed, split="test")
    train, test = rows(task.train_images), rows(task.test_images)
    of_classes = torch.isin(data.test_labels, torch.tensor([4, 0, 3]))
    assert sorted(train + test) == sorted(rows(data.test_images[of_classes]))
    assert not set(train) & set(test)
    assert not set(train + test) & set(rows(data.train_images))
    counts = task.train_labels.bincount(minlength=3)
    assert counts.sum() == (15 if images is None else images)
    assert counts.max() - counts.min() <= 1
    # Pixel (0, 0, 0) holds the original class: labels went along with their images.
    original = torch.tensor([4, 0, 3])
    assert torch.equal(original[task.train_labels], task.train_images[:, 0, 0, 0].long())
    assert torch.equal(original[task.test_labels], task.test_images[:, 0, 0, 0].long())
    assert task.classes == ("class 4", "class 0", "class 3")
    assert task.augment == data.augment


@pytest.mark.parametrize(
    ("tests", "each"), [([10, 10], 5), ([11, 11, 11], 5), ([2, 40], 1), ([3, 3], 1), ([9, 8, 7], 3)]
)
def test_half_of_the_test_images_by_default(
    marked: Callable[[list[int]], DataSet], tests: list[int], each: int
) -> None:
    task = make_task(marked(tests), split="test")
    assert task.train_labels.bincount().tolist() == [each] * len(tests)
    assert task.test_labels.bincount().tolist() == [count - each for count in tests]
    assert task.provenance["images"] == each * len(tests)


def test_test_images_are_drawn_as_training_images_are(
    marked: Callable[[list[int]], DataSet],
) -> None:
    data = marked([10, 12, 15])
    swapped = replace(data, train_images=data.test_images, train_labels=data.test_labels)
    for images in (3, 10, 25):
        task = make_task(data, images=images, seed=5, split="test")
        expected = choose_images(swapped, range(3), images, seed=5)
        assert torch.equal(task.train_images, data.test_images[expected])
        again = make_task(data, images=images, seed=5, split="test")
        assert torch.equal(task.train_images, again.train_images)
        assert torch.equal(task.test_images, again.test_images)


def test_fewer_test_images_are_among_more(marked: Callable[[list[int]], DataSet]) -> None:
    data = marked([10, 12, 15])
    for seed in range(5):
        chosen = [
            set(rows(make_task(data, images=images, seed=seed, split="test").train_images))
            for images in (3, 4, 8, 20, 27)
        ]
        assert all(few < more for few, more in pairwise(chosen))
    one, two = (make_task(data, seed=seed, split="test") for seed in (0, 1))
    assert not torch.equal(one.train_images, two.train_images)


def test_a_task_of_test_images_is_resized_and_normalised_as_any_other() -> None:
    task = load_task("digits", classes=[3, 5], images=20, size=16, split="test")
    assert task.train_images.shape == (20, 1, 16, 16)
    assert task.test_images.shape[1:] == (1, 16, 16)
    pixels = task.train_images.numpy() / 255
    np.testing.assert_allclose(task.mean.numpy(), [pixels.mean()], rtol=1e-6)
    np.testing.assert_allclose(task.std.numpy(), [pixels.std()], rtol=1e-6)


@pytest.mark.parametrize("images", [3, 7, 9])
def test_a_task_to_choose_settings_by_learns_the_same_and_holds_no_test_image(
    marked: Callable[[list[int]], DataSet], images: int
) -> None:
    data = marked([10, 12, 0, 11, 15])
    usual, task = (
        make_task(data, classes=[4, 0, 3], images=images, seed=2, split=split)
        for split in ("train", "tuning")
    )
    assert torch.equal(task.train_images, usual.train_images)
    assert torch.equal(task.train_labels, usual.train_labels)
    train, judges = rows(task.train_images), rows(task.test_images)
    of_classes = torch.isin(data.train_labels, torch.tensor([4, 0, 3]))
    assert sorted(train + judges) == sorted(rows(data.train_images[of_classes]))
    assert not set(train) & set(judges)
    assert not set(train + judges) & set(rows(data.test_images))
    original = torch.tensor([4, 0, 3])
    assert torch.equal(original[task.test_labels], task.test_images[:, 0, 0, 0].long())
    assert task.provenance == {**usual.provenance, "split": "tuning"}


def test_some_training_images_must_be_left_to_choose_by() -> None:
    whole = len(load_task("digits").train_labels)
    with pytest.raises(
        TaskError, match=f"of split 'tuning'; digits has {whole} training images"
    ) as caught:
        load_task("digits", images=whole, split="tuning")
    most = int(str(caught.value).partition("at most ")[2].partition(",")[0])
    assert most < whole
    assert len(load_task("digits", images=most, split="tuning").train_labels) == most


def test_only_a_task_of_one_part_tells_its_split() -> None:
    def load(**settings: str) -> Task:
        return load_task("digits", classes=[4, 2], images=9, seed=3, **settings)  # type: ignore[arg-type]

    plain, same, other = load(), load(split="train"), load(split="test")
    usual = {
        "data": "digits",
        "checksum": digits().checksum,
        "classes": [4, 2],
        "images": 9,
        "seed": 3,
        "size": None,
    }
    assert json.dumps(plain.provenance) == json.dumps(same.provenance) == json.dumps(usual)
    assert json.dumps(other.provenance) == json.dumps(usual | {"split": "test"})
    assert torch.equal(plain.train_images, same.train_images)
    assert torch.equal(plain.test_images, same.test_images)


def test_some_test_images_of_each_class_must_be_left(
    marked: Callable[[list[int]], DataSet],
) -> None:
    data = marked([10, 12, 15])
    for seed in range(10):
        with pytest.raises(
            TaskError, match="got 37 training images of split 'test'; numbered has 37 test images"
        ) as caught:
            make_task(data, images=37, seed=seed, split="test")
        most = int(str(caught.value).partition("at most ")[2].partition(",")[0])
        assert 27 <= most <= 29
        task = make_task(data, images=most, seed=seed, split="test")
        assert min(task.test_labels.bincount(minlength=3).tolist()) == 1
        with pytest.raises(TaskError, match=f"at most {most}"):
            make_task(data, images=most + 1, seed=seed, split="test")


@pytest.mark.parametrize("images", [None, 2, 5])
def test_a_class_with_one_test_image_cannot_be_split(
    marked: Callable[[list[int]], DataSet], images: int | None
) -> None:
    data = marked([5, 1, 5])
    with pytest.raises(TaskError, match="class 1 of numbered has 1 test image; split 'test' needs"):
        make_task(data, images=images, split="test")
    assert len(make_task(data, classes=[0, 2], split="test").train_labels) == 4


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (1, "at least 2, one for each class"),
        (2.5, "got 2.5"),
        (True, "got True"),
        (1000, "ask for at most 1[89], or leave the number out to use half"),
    ],
)
def test_impossible_numbers_of_test_images_are_refused(
    marked: Callable[[list[int]], DataSet], images: int, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        make_task(marked([10, 15]), images=images, split="test")


@pytest.mark.parametrize("split", ["validation", "", "Test", None, 1, ["test"]])
def test_an_unknown_split_is_refused(split: object) -> None:
    with pytest.raises(TaskError, match="as the split; give 'train', 'test' or 'tuning'"):
        load_task("digits", split=split)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="as the split; give 'train', 'test' or 'tuning'"):
        make_task(digits(), split=split)  # type: ignore[arg-type]
