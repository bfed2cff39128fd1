"""A plain VGG19 in small, for a CPU: most connections are in a classifier behind narrow convolutions.

On images of 16 × 16 the first linear layer sees 49 copies of each input, as VGG19's does on CIFAR. A
parent for the other scripts here:

    python benchmarks/ap_settings.py --parent small_vgg:plain --size 16
"""

import torch
from torch import Tensor, nn

import aprune as ap
from aprune.parents.vgg import Plan, stack_convolutions

PLAN: Plan = (16, 16, "pool", 32, 32, "pool", 64, 64, "pool", 128, 128, "pool")
HIDDEN, POOLED, LAST = 256, 7, 128


class SmallVGG(nn.Module):
    """Eight convolutions, three linear layers; 2.0 M connections, 1.6 M in the first linear one."""

    def __init__(self, task: ap.Task) -> None:
        super().__init__()
        self.features = stack_convolutions(PLAN, task.shape[0], batch_norm=False)
        self.avgpool = nn.AdaptiveAvgPool2d((POOLED, POOLED))
        self.classifier = nn.Sequential(
            nn.Linear(LAST * POOLED**2, HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(HIDDEN, task.num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))
        return scores


def plain(task: ap.Task) -> nn.Module:
    """Return one for a task."""
    return SmallVGG(task)
