"""Accuracy on images that were never trained on."""

import torch
from torch import Tensor, nn

from aprune.progress import Advance, bar
from aprune.tasks import Task
from aprune.training.batch import Normalise
from aprune.training.device import dtype_of, mixed_precision

_BATCH = 1_000  # images at a time, or as many as a GPU has memory for


def predict(
    model: nn.Module,
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    title: str = "predicting",
    progress: bool | None = None,
) -> Tensor:
    """Return the class number of each uint8 image, normalised as in training."""
    was_training = model.training
    model.eval()
    with (
        torch.no_grad(),
        mixed_precision(images.device),
        bar(title, len(images), show=progress) as advance,
    ):
        normalise = Normalise(mean, std, dtype_of(model))
        labels = _label(model, images, normalise, _BATCH, advance)
    model.train(was_training)
    return labels


def _label(
    model: nn.Module, images: Tensor, normalise: Normalise, batch: int, advance: Advance
) -> Tensor:
    labels: list[Tensor] = []
    try:
        for part in images.split(batch):
            labels.append(model(normalise(part)).argmax(1))
            advance(len(part))
        return torch.cat(labels)
    except torch.OutOfMemoryError:
        advance(-sum(map(len, labels)))
    if batch == 1:
        raise torch.OutOfMemoryError("CUDA out of memory for one image")
    labels.clear()
    return _label(model, images, normalise, batch // 2, advance)


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


def evaluate(model: nn.Module, task: Task, *, progress: bool | None = None) -> float:
    """Return the accuracy of `model` on the test images of `task`.

    Args:
        model: The network; it is left in the mode that it was in.
        task: Whose test images are looked at.
        progress: Whether to show a bar; None shows it on a terminal, if it takes long.
    """
    labels = predict(
        model, task.test_images, task.mean, task.std, title="testing", progress=progress
    )
    right = labels == task.test_labels
    return right.float().mean().item()
