"""The 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn: no file, no network."""

import torch

from aprune.tasks.dataset import DataSet
from aprune.tasks.draw import shuffled
from aprune.tasks.task import Augment


def read_digits() -> DataSet:
    """Return the digits, split once and for all: of every class a third is for testing.

    Example:
        >>> digits = read_digits()
        >>> len(digits.train_labels), len(digits.test_labels)
        (1198, 599)
    """
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    images = (torch.from_numpy(values) * (255 / 16)).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(labels).to(torch.int64)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        members = (labels == label).nonzero().flatten()
        test[members[shuffled(len(members), "digits", label)[: round(len(members) / 3)]]] = True
    return DataSet(
        name="digits",
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        classes=tuple(str(label) for label in range(10)),
        augment=Augment(),
    )
