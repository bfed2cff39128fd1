import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from aprune.tasks import Augment, load_task
from aprune.tasks.digits import read_digits


def test_pixels_are_scaled_from_16_to_255() -> None:
    digits = read_digits()
    everything = torch.cat([digits.train_images, digits.test_images]).flatten(1).numpy()
    values = load_digits().data
    expected = np.array([round(value * 255 / 16) for value in range(17)])[values.astype(int)]
    assert sorted(map(bytes, everything)) == sorted(map(bytes, expected.astype(np.uint8)))
    assert everything.max() == 255


def test_the_split_is_stratified_and_never_changes() -> None:
    digits = read_digits()
    counts = np.bincount(load_digits().target)
    assert digits.test_labels.bincount().tolist() == [round(count / 3) for count in counts]
    assert digits.checksum == CHECKSUM
    assert load_task("digits", seed=5).provenance["checksum"] == CHECKSUM


@pytest.mark.parametrize("label", range(10))
def test_labels_belong_to_their_images(label: int) -> None:
    source = load_digits()
    known = {
        bytes(np.round(row * 255 / 16).astype(np.uint8))
        for row in source.data[source.target == label]
    }
    digits = read_digits()
    for images, labels in (
        (digits.train_images, digits.train_labels),
        (digits.test_images, digits.test_labels),
    ):
        assert {bytes(row) for row in images[labels == label].flatten(1).numpy()} <= known


def test_digits_are_neither_mirrored_nor_shifted() -> None:
    assert load_task("digits").augment == Augment(flip=False, shift=0)


CHECKSUM = "a804bd0b4151b9ddf3fee1a005a25365c74581c1a168880831ef217391fb5859"
