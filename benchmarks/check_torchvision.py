"""Compare the VGG and ResNet parents with torchvision's: names, shapes and outputs.

Run it where torchvision is installed: ``python benchmarks/check_torchvision.py``. It prints one
line a parent and exits with status 1 if any of them differs.
"""

import sys
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torchvision import models

from aprune.parents import build_parent, parent_names

TASK = SimpleNamespace(shape=(3, 64, 64), num_classes=10)
TOLERANCE = 1e-4
OWN = {"logistic", "mlp", "conv", "conv_bn", "resnet20", "resnet56"}
"""The parents that torchvision does not have."""


def disturb(network: nn.Module) -> None:
    """Move biases and norms away from zero and one, where a mix-up would go unnoticed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and tensor.ndim == 1:
                noise = torch.rand(tensor.shape, generator=generator)
                tensor.copy_(0.5 + noise if name.endswith("running_var") else tensor + 0.1 * noise)


def compute_scores(network: nn.Module, images: Tensor, *, training: bool) -> Tensor:
    """Compute the outputs; the same seed lets both libraries drop the same units."""
    torch.manual_seed(2)
    with torch.no_grad():
        scores: Tensor = network.train(training)(images)
    return scores


def find_difference(name: str) -> str | None:
    """Say in what a parent differs from torchvision's network of that name, or None."""
    ours = build_parent(name, TASK)
    theirs = getattr(models, name)(weights=None, num_classes=TASK.num_classes)
    our_shapes = [(key, tuple(tensor.shape)) for key, tensor in ours.state_dict().items()]
    their_shapes = [(key, tuple(tensor.shape)) for key, tensor in theirs.state_dict().items()]
    if our_shapes != their_shapes:
        return f"names or shapes differ: {sorted(set(our_shapes) ^ set(their_shapes))[:4]}"
    disturb(theirs)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(4, *TASK.shape, generator=torch.Generator().manual_seed(0))
    for training in (False, True):
        expected = compute_scores(theirs, images, training=training)
        got = compute_scores(ours, images, training=training)
        error = ((got - expected).abs().max() / expected.abs().max()).item()
        # Turned round, so that an error that is not a number counts as a difference.
        if not error <= TOLERANCE:
            return f"outputs differ by {error:.1e} (training={training})"
    return None


def main() -> int:
    """Check every parent that torchvision has too."""
    failed = 0
    for name in parent_names():
        if name in OWN:
            continue
        difference = find_difference(name)
        failed += difference is not None
        print(f"{name:10} {difference or 'same names, shapes and outputs'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
