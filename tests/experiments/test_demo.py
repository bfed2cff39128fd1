"""The demo: its sentence follows the numbers, whichever way they point."""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import torch

from aprune.experiments.demo import HEADLINE, SETTING, demo, judge
from aprune.methods import IMP


def rows(method: str, sparsity: float, accuracies: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": method,
            "sparsity": sparsity,
            "seed": range(len(accuracies)),
            "accuracy": accuracies,
        }
    )


BASE = [0.70, 0.72, 0.69, 0.71, 0.705]


def shifted(by: list[float]) -> list[float]:
    return [accuracy + more for accuracy, more in zip(BASE, by, strict=True)]


def test_sentence_when_ap_wins() -> None:
    frame = pd.concat(
        [rows("ap", 0.98, shifted([0.10, 0.12, 0.11, 0.09, 0.105])), rows("random", 0.98, BASE)]
    )
    sentence = judge(frame)
    assert sentence.startswith(
        "At sparsity 0.98 AP's architectures reach 0.810: better than random (0.705; difference"
        " 0.105, 95 % interval 0.0"
    )
    assert sentence.endswith(", 5 seeds).")


def test_sentence_when_ap_loses() -> None:
    frame = pd.concat(
        [
            rows("ap", 0.98, shifted([-0.10, -0.12, -0.11, -0.09, -0.105])),
            rows("random", 0.98, BASE),
        ]
    )
    sentence = judge(frame)
    assert "reach 0.600: worse than random (0.705; difference -0.105" in sentence
    assert "better" not in sentence


def test_sentence_when_nothing_is_clear() -> None:
    frame = pd.concat(
        [rows("ap", 0.98, shifted([0.1, -0.1, 0.05, -0.03, 0.005])), rows("imp", 0.98, BASE)]
    )
    sentence = judge(frame)
    assert "not clearly different from IMP (0.705; difference 0.005" in sentence
    assert "better" not in sentence
    assert "worse" not in sentence


def test_sentence_also_says_where_it_is_otherwise() -> None:
    up = [0.10, 0.12, 0.11, 0.09, 0.105]
    down = [-more for more in up]
    frame = pd.concat(
        [
            *(rows("random", sparsity, BASE) for sparsity in (0.5, 0.9, 0.98, 0.99)),
            rows("ap", 0.5, shifted(down)),
            rows("ap", 0.9, shifted([0.1, -0.1, 0.05, -0.06, 0.0])),
            rows("ap", 0.98, shifted(up)),
            rows("ap", 0.99, shifted(up)),
        ]
    )
    assert judge(frame).endswith(
        "; against random AP is better at 0.99, worse at 0.5, neither at 0.9."
    )


def test_sentence_of_runs_that_diverged_or_were_few() -> None:
    nothing = [math.nan] * 5
    frame = pd.concat(
        [rows("ap", 0.9, BASE), rows("random", 0.9, nothing), rows("imp", 0.9, BASE[:4])]
    )
    sentence = judge(frame)
    assert "not comparable with random (no accuracy, as all diverged)" in sentence
    assert "+0.000 against IMP (0.705; seeds: 4, too few to tell)" in sentence


def test_small_demo_on_real_digits(tmp_path: Path) -> None:
    small = dataclasses.replace(
        SETTING,
        sparsities=(0.5, HEADLINE),
        seeds=(0, 1),
        settings=(IMP(rounds=2, steps=5),),
        search_steps=20,
        retrain_steps=10,
    )
    threads = torch.get_num_threads()
    result = demo(tmp_path, progress=False, setting=small)
    assert torch.get_num_threads() == threads
    assert len(result.frame) == 2 * (2 * 3 + 1)
    assert result.sentence == judge(result.frame)
    assert result.sentence.startswith("At sparsity 0.98 AP's architectures reach 0.")
    assert len(result.table.rows) == 2 * 4
    assert all(len(row) == len(result.table.header) for row in result.table.rows)
    assert result.png.stat().st_size > 0
    assert result.pdf.stat().st_size > 0


def test_old_and_new_digits_have_nothing_in_common() -> None:
    old, new = SETTING.search_task.classes, SETTING.new_task.classes
    assert isinstance(old, tuple)
    assert isinstance(new, tuple)
    assert not set(old) & set(new)
    assert HEADLINE in SETTING.sparsities
    # equal numbers of training steps for the two methods that search
    imp = SETTING.method("imp")
    assert isinstance(imp, IMP)
    assert imp.steps is not None
    assert imp.rounds * imp.steps == SETTING.search_steps
