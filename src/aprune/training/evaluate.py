"""Accuracy on images that were never trained on."""

import contextlib

import torch
from torch import Tensor, nn

from aprune.tasks import Task
from aprune.training.batch import Normalise
from aprune.training.device import dtype_of, mixed_precision

_BATCH = 1_000  # images at a time, or as many as a GPU has memory for


def predict(model: nn.Module, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the class number of each uint8 image, normalised as in training."""
    was_training = model.training
    model.eval()
    with torch.no_grad(), mixed_precision(images.device):
        labels = _label(model, images, Normalise(mean, std, dtype_of(model)), _BATCH)
    model.train(was_training)
    return labels


def _label(model: nn.Module, images: Tensor, normalise: Normalise, batch: int) -> Tensor:
    with contextlib.suppress(torch.OutOfMemoryError):
        return torch.cat([model(normalise(part)).argmax(1) for part in images.split(batch)])
    if batch == 1:
        raise torch.OutOfMemoryError("CUDA out of memory for one image")
    return _label(model, images, normalise, batch // 2)


def gives_one_output(model: nn.Module, x: Tensor) -> bool:
    """Tell whether `model` cannot tell any of some normalised images from another.

    Nothing of the model changes, and no random number is drawn.

    Example:
        >>> x = torch.arange(8.0).view(4, 2)
        >>> gives_one_output(nn.Linear(2, 3), x), gives_one_output(nn.ReLU(), -x)
        (False, True)
    """
    was_training = model.training
    model.eval()
    devices = [x.device] if x.is_cuda else []
    with torch.no_grad(), mixed_precision(x.device), torch.random.fork_rng(devices):
        scores = model(x).float()
    model.train(was_training)
    return bool((scores.amax(0) - scores.amin(0) <= 1e-6 * scores.abs().amax()).all())


def evaluate(model: nn.Module, task: Task) -> float:
    """Return the accuracy of `model` on the test images of `task`."""
    right = predict(model, task.test_images, task.mean, task.std) == task.test_labels
    return right.float().mean().item()
