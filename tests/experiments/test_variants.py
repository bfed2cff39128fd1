"""Variants of an architecture: other places, other weights to start from, signs alone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from aprune import Retraining, load_task, transfer
from aprune.errors import SettingError
from aprune.experiments import comparison as module
from aprune.experiments import plan, retrain, run
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.experiments.store import Store
from aprune.experiments.variant import VARIANTS
from aprune.finding import search
from aprune.initialise import initialise
from aprune.methods import AP, IMP, METHODS
from aprune.parents import build_parent
from aprune.training import Recipe
from aprune.training.network import network_for

CPU = torch.device("cpu")
TINY = Comparison(
    parent="mlp",
    search_task=TaskChoice("digits", classes=(0, 1, 2)),
    new_task=TaskChoice("digits", classes=3, images=30),
    methods=("ap", "imp", "dense"),
    sparsities=(0.5, 0.9),
    seeds=(0, 1),
    settings=(IMP(rounds=2, steps=5),),
    search_steps=10,
    retrain_steps=12,
    lrs=(0.3,),
)
EVERY = tuple(("ap", variant) for variant in VARIANTS)
EVERY += (("imp", "rewound"), ("dense", "fine_tuned"), ("dense", "bare"), ("dense", "normal"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.style, "save", lambda figure, path: None)
        return compare(dataclasses.replace(TINY, also=EVERY), out, device="cpu"), out


def test_every_variant_has_its_rows(whole: tuple[pd.DataFrame, Path]) -> None:
    frame, out = whole
    assert frame.attrs["complete"]
    counts = frame.groupby(["method", "variant"]).size().to_dict()
    ap = {("ap", variant): 4 for variant in ("", *VARIANTS)}
    dense = {("dense", variant): 2 for variant in ("", "fine_tuned", "bare", "normal")}
    assert counts == ap | dense | {("imp", ""): 4, ("imp", "rewound"): 4}
    assert frame.loc[frame["reshuffled"], "variant"].unique().tolist() == ["reshuffled"]
    losses = frame[frame["method"] == "ap"].groupby(["sparsity", "seed"])["train_loss"]
    # fresh weights that fit are those by the inputs of each unit: the others are all different
    assert (losses.nunique() == len(VARIANTS)).all()
    text = (out / "table.md").read_text()
    assert "| 0.9 | AP, fine-tuned |" in text
    assert "| 0.9 | dense, fine-tuned |" in text


def test_a_dense_network_counts_the_steps_of_its_first_training(
    whole: tuple[pd.DataFrame, Path],
) -> None:
    dense = whole[0][whole[0]["method"] == "dense"].groupby("variant")["search_steps"].unique()
    assert {name: steps.tolist() for name, steps in dense.items()} == {
        "": [0],
        "normal": [0],
        "bare": [0],
        "fine_tuned": [10],
    }


def test_fine_tuning_begins_with_the_weights_of_the_search(
    whole: tuple[pd.DataFrame, Path],
) -> None:
    frame, _ = whole
    made = plan.Plan(dataclasses.replace(TINY, also=EVERY), CPU)
    one = made.final(plan.Arm("ap", 0.9, "fine_tuned"), 1, plan.Trial(0.3, None))
    assert one.search is not None
    found = search(
        "mlp",
        one.search.task,
        AP(),
        sparsities=TINY.sparsities,
        seed=1,
        recipe=one.search.recipe,
        weights=True,
        device="cpu",
    )
    expected = transfer(
        found.architectures[1],
        "mlp",
        one.task,
        seed=1,
        recipe=one.recipe,
        start_from=found.networks[1],
        device="cpu",
    )
    row = frame[(frame["variant"] == "fine_tuned") & (frame["sparsity"] == 0.9)].set_index("seed")
    assert row.loc[1, "train_loss"] == expected.curve.final()
    assert row.loc[1, "accuracy"] == expected.accuracy


def test_nothing_is_searched_or_trained_again(
    whole: tuple[pd.DataFrame, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, out = whole
    for place, name in ((run, "search"), (retrain, "transfer"), (retrain, "transfer_many")):
        original = getattr(place, name)
        stub = (lambda todo, **_: iter(todo)) if name == "transfer_many" else pytest.fail
        monkeypatch.setattr(place, name, stub)
        assert original is not stub
    monkeypatch.setattr(module.style, "save", lambda figure, path: None)
    again = compare(dataclasses.replace(TINY, also=EVERY), out, device="cpu")
    pd.testing.assert_frame_equal(again, frame)


def test_a_damaged_network_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.style, "save", lambda figure, path: None)
    tuned = (("ap", "fine_tuned"), ("dense", "fine_tuned"))
    asked = dataclasses.replace(TINY, methods=("ap", "dense"), seeds=(0,), also=tuned)
    first = compare(asked, tmp_path, device="cpu")
    networks = sorted((tmp_path / "networks").iterdir())
    assert len(networks) == 3  # two sparsities, and the dense one
    for path in networks:
        path.write_bytes(path.read_bytes()[:-10])
    for path in (tmp_path / "runs").iterdir():
        if '"kind": "transfer"' in path.read_text():
            path.unlink()
    again = compare(asked, tmp_path, device="cpu")
    pd.testing.assert_frame_equal(again, first)
    # a search writes both of its networks again when the first is found to be damaged
    assert len(again.attrs["damaged"]) == 2
    assert set(again.attrs["damaged"]) < {str(path) for path in networks}


def test_networks_are_kept_only_where_they_are_needed(
    whole: tuple[pd.DataFrame, Path],
) -> None:
    kept = list((whole[1] / "networks").iterdir())
    assert len(kept) == 2 * (2 + 1)  # seeds × (sparsities of AP and the dense one): none of IMP's


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().rewinds])
def test_searches_that_can_be_rewound_start_from_hes_weights(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("digits", classes=[0, 1, 2])
    states: list[dict[str, torch.Tensor]] = []

    def note(model: nn.Module, inputs: Any) -> None:
        states.append({name: value.clone() for name, value in model.state_dict().items()})

    def built(*args: Any, **kwargs: Any) -> nn.Module:
        model = network_for(*args, **kwargs)
        model.register_forward_pre_hook(note)
        return model

    monkeypatch.setattr("aprune.finding.network_for", built)
    recipe = Recipe(steps=5, lr=0.1, batch=16)
    search("mlp", task, METHODS[name](), sparsities=[0.5], seed=3, recipe=recipe, device="cpu")
    expected = build_parent("mlp", task)
    initialise(expected, scheme="he", seed=3)
    seen = set()
    hidden = (("parametrizations.", ""), (".original", ""))  # behind a mask
    for key, value in states[0].items():
        for part, other in hidden:
            key = key.replace(part, other)
        if key in expected.state_dict():  # SynFlow looks at sizes alone, in 64 bits
            assert torch.equal(value.abs().float(), expected.state_dict()[key].abs()), key
            seen.add(key)
    assert seen == set(expected.state_dict())


def test_rewound_weights_are_those_of_the_search() -> None:
    made = plan.Plan(dataclasses.replace(TINY, also=(("ap", "rewound"),)), CPU)
    one = made.final(plan.Arm("ap", 0.9, "rewound"), 1, plan.Trial(0.3, None))
    start = retrain.Starts(Store("nowhere"), CPU).get(one)
    assert start is not None
    expected = build_parent("mlp", made.search("ap", 1).task)  # type: ignore[union-attr]
    initialise(expected, scheme="he", seed=1)
    for name, value in expected.state_dict().items():
        assert torch.equal(start.model.state_dict()[name], value)


def test_a_variant_changes_the_run_and_nothing_else() -> None:
    made = plan.Plan(dataclasses.replace(TINY, also=EVERY), CPU)
    trial = plan.Trial(0.3, None)
    plain = made.final(plan.Arm("ap", 0.9), 0, trial).describe()
    for variant in VARIANTS:
        own = made.final(plan.Arm("ap", 0.9, variant), 0, trial).describe()
        assert len(set(own) - set(plain)) == 1
        assert {key: own[key] for key in plain} == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"also": (("dense", "reshuffled"),)}, "dense has no reshuffled"),
        ({"also": (("dense", "rewound"),)}, "dense has no rewound"),
        ({"also": (("ap", "golden"),)}, "unknown variant 'golden': expected one of reshuffled"),
        ({"also": (("snip", "bare"),)}, "'snip' is not among the methods"),
        ({"also": (("ap", "bare"), ("ap", "bare"))}, "expected each once"),
        ({"also": (("ap", "he"),), "protocol": "paper"}, "the paper's protocol knows no he"),
        ({"also": (("ap", "rewound"),), "settings": (AP(theta_start=0.1),)}, "ap has no rewound"),
        ({"methods": ("random",), "also": (("random", "fine_tuned"),)}, "random has no fine_tuned"),
        ({"methods": ("erk",), "also": (("erk", "rewound"),)}, "erk has no rewound"),
        ({"methods": ("rigl",), "also": (("rigl", "rewound"),)}, "rigl has no rewound"),
        ({"also": (("ap", "bare"),), "onto": "conv"}, "leave one of the two out"),
    ],
)
def test_impossible_variants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        dataclasses.replace(TINY, **changes)


def test_bare_architectures_are_retrained_bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Retraining] = []
    original = retrain.transfer_many

    def noted(todo: Iterator[Retraining], **more: Any) -> Iterator[Any]:
        for pair in original(todo, **more):
            done.append(pair[0])
            yield pair

    monkeypatch.setattr(retrain, "transfer_many", noted)
    monkeypatch.setattr(module.style, "save", lambda figure, path: None)
    asked = dataclasses.replace(TINY, methods=("ap",), seeds=(0,), also=(("ap", "bare"),))
    compare(asked, tmp_path, device="cpu")
    assert sorted(retraining.bare for retraining in done) == [False, False, True, True]
