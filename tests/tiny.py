"""A comparison that is done in seconds, for the tests of all that comparisons do."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from aprune import Result, Retraining
from aprune.errors import TrainingError
from aprune.experiments import plan, retrain
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.methods import IMP

TINY = Comparison(
    parent="mlp",
    search_task=TaskChoice("digits", classes=(0, 1, 2)),
    new_task=TaskChoice("digits", classes=3, images=30),
    methods=("ap", "random", "imp", "dense"),
    sparsities=(0.9, 0.5),
    seeds=(0, 1),
    settings=(IMP(rounds=2, steps=5),),
    search_steps=10,
    retrain_steps=12,
    lrs=(1e-7, 0.3),
    tuning_seeds=(7,),
)
PLAIN = dataclasses.replace(TINY, methods=("random", "dense"), lrs=(0.3,))
TRIAL = plan.Trial(lr=0.1, mixup=None)
DENSE = plan.Arm("dense", 0.0)
SIZE = 9 + 7 * (2 + 2)  # searches of 3 methods × seeds 0, 1, 7; 7 arms × (2 rates + 2 seeds)


def let_die(monkeypatch: pytest.MonkeyPatch, dies: Callable[[Retraining], bool]) -> None:
    """Make some retrainings diverge."""
    original = retrain.transfer_many

    def dying(
        todo: Sequence[Retraining], **more: Any
    ) -> Iterator[tuple[Retraining, Result | TrainingError]]:
        for retraining, result in original(todo, **more):
            error = TrainingError("the loss is inf at step 3 of 12")
            yield retraining, error if dies(retraining) else result

    monkeypatch.setattr(retrain, "transfer_many", dying)


def do(comparison: Comparison, out: Path, **more: Any) -> pd.DataFrame:
    return compare(comparison, out, device="cpu", progress=False, **more)
