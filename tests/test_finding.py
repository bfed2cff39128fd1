"""`find` and `search`: what they return, what they write down, what they refuse."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aprune import AP, IMP, Architecture, Random, Recipe, attach, find, load_task, search, transfer
from aprune.errors import ParentError, SettingError
from aprune.tasks import Task
from aprune.training import evaluate

TASK = load_task("digits", classes=[0, 1, 2], images=90, seed=0)
QUICK = Recipe(steps=20, lr=0.03, batch=32)


def flat_net(task: Any) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, task.num_classes)
    )


def test_one_sparsity_gives_one_architecture_and_several_a_list() -> None:
    one = find("mlp", TASK, Random(), sparsity=0.5)
    assert isinstance(one, Architecture)
    assert find("mlp", TASK, Random(), sparsity=[0.5]) == [one]
    assert find("mlp", TASK, Random(), sparsity=np.array([0.5, 0.9]))[0] == one
    assert find("mlp", TASK, Random(), sparsity=np.float32(0.5)) == one
    assert find("mlp", TASK, Random(), sparsity=0).kept == one.total


def test_settings_for_attach_do_no_harm_where_they_are_the_same() -> None:
    recipe = Recipe(5, 0.1)
    method = AP(sparsity=0.8, steps=5)
    found = find("mlp", TASK, method, sparsity=0.8, recipe=recipe, device="cpu")
    assert found == find("mlp", TASK, AP(), sparsity=0.8, recipe=recipe, device="cpu")
    several = AP(sparsity=(0.8, 0.5))
    find("mlp", TASK, several, sparsity=[0.5, 0.8, 0.8], recipe=recipe, device="cpu")


def test_the_order_is_that_of_asking() -> None:
    asked = [0.9, 0.1, 0.5, 0.9]
    found = find("mlp", TASK, AP(), sparsity=asked, recipe=QUICK, device="cpu")
    assert [arch.provenance["sparsity"] for arch in found] == asked
    assert [round(arch.sparsity, 2) for arch in found] == asked


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        (1.0, "got 1.0, expected at least 0 and below 1"),
        (1.2, "got 1.2"),
        (-1, "got -1"),
        (float("nan"), "got nan"),
        ([0.5, 1.0], "got 1.0"),
        ("high", "got high"),
        ([], "no sparsity was given"),
        (0.9999999, "leaves nothing of 49,536 connections"),
    ],
)
def test_a_sparsity_that_cannot_be_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, sparsity: Any, message: str
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("searched before looking")

    monkeypatch.setattr(AP, "search", never)
    with pytest.raises(SettingError, match=message):
        find("mlp", TASK, AP(), sparsity=sparsity, recipe=QUICK, device="cpu")


def test_provenance_says_all_that_it_takes_to_repeat() -> None:
    arch = find(
        "mlp",
        TASK,
        AP(w_schedule=lambda step, steps: 1.0),
        sparsity=0.5,
        seed=3,
        recipe=QUICK,
        exclude="fc3.*",
        device="cpu",
    )
    about = dict(arch.provenance)
    assert json.loads(json.dumps(about)) == about
    assert (about["parent"], about["method"], about["seed"]) == ("mlp", "ap", 3)
    assert (about["include"], about["exclude"]) == (None, ["fc3.*"])
    assert about["recipe"]["steps"] == about["steps"] == 20
    assert about["task"]["checksum"] == TASK.provenance["checksum"]
    assert (about["input"], about["classes"]) == ([1, 8, 8], 3)
    assert "lambda" in about["settings"]["w_schedule"]
    assert 0 <= about["test_accuracy"] <= 1
    assert about["train_loss"] > 0


def test_random_trains_nothing_and_says_so() -> None:
    found = search("mlp", TASK, Random(), sparsities=[0.5])
    assert (found.steps, found.curves, found.accuracy, found.networks) == (0, (), None, ())
    assert found.architectures[0].provenance["recipe"] is None


def test_the_search_s_own_networks_predict() -> None:
    recipe = QUICK.but(steps=60)
    found = search(
        "mlp", TASK, AP(), sparsities=[0.5, 0.8], recipe=recipe, weights=True, device="cpu"
    )
    last = found.networks[-1]
    assert last.parent == "mlp"
    assert (last.shape, last.classes) == ((1, 8, 8), ("0", "1", "2"))
    assert evaluate(last.model, TASK) == found.accuracy
    right = last.predict(TASK.test_images) == TASK.test_labels
    assert right.float().mean().item() == pytest.approx(found.accuracy)
    assert found.accuracy > 0.8
    # that of an earlier sparsity was trained for less long, but not for nothing
    assert evaluate(found.networks[0].model, TASK) > 0.6


@pytest.mark.parametrize("method", [AP(), IMP(rounds=2)], ids=["ap", "imp"])
def test_weights_of_a_network_of_one_s_own(method: AP | IMP) -> None:
    mine = flat_net(TASK)
    found = search(mine, TASK, method, sparsities=[0.5], recipe=QUICK, weights=True, device="cpu")
    network = found.networks[0]
    assert network.parent == "Sequential"
    assert network.model is not mine
    for name, mask in found.architectures[0].masks().items():
        assert torch.equal(dict(network.model.named_parameters())[name] != 0, mask)


def test_tied_layers_may_be_excluded() -> None:
    def tied(task: Task) -> nn.Module:
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        )
        net[3].weight = net[2].weight
        return net

    for method in (AP(), IMP(rounds=2), Random()):
        with pytest.raises(SettingError, match="share one tensor"):
            find(tied, TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
        arch = find(
            tied, TASK, method, sparsity=0.5, recipe=QUICK, exclude=["2.*", "3.*"], device="cpu"
        )
        assert arch.names == ("1.weight", "4.weight")


def test_a_compiled_network_has_the_architectures_of_a_plain_one() -> None:
    plain = flat_net(TASK)
    compiled = torch.compile(plain, backend="eager")
    found = find(compiled, TASK, Random(), sparsity=0.5, device="cpu")  # type: ignore[arg-type]
    assert found == find(plain, TASK, Random(), sparsity=0.5, device="cpu")
    loaded = transfer(found, plain, TASK, recipe=QUICK, device="cpu").model
    assert list(loaded.state_dict()) == list(plain.state_dict())
    search = attach(compiled, AP(sparsity=0.5, steps=10))  # type: ignore[arg-type]
    assert list(search.w) == list(found.names)


@pytest.mark.parametrize(
    ("go", "error", "message"),
    [
        (lambda: find("alexnet", TASK, Random(), sparsity=0.5), ParentError, "no parent 'alexnet'"),
        (
            lambda: find(nn.Flatten(), TASK, Random(), sparsity=0.5),
            ParentError,
            "expected \\[2, 3\\]",
        ),
        (
            lambda: find(flat_net(TASK).bfloat16(), TASK, Random(), sparsity=0.5),
            ParentError,
            r"weights of torch\.bfloat16: expected torch\.float32",
        ),
        (
            lambda: find("mlp", TASK, Random(), sparsity=0.5, include="features.*"),
            SettingError,
            "no connections",
        ),
        (
            lambda: find("mlp", TASK, Random(), sparsity=0.5, exclude=["fc3.*", "fc2.wieght"]),
            SettingError,
            r"no parameter matches 'fc2\.wieght': expected names as in fc1\.weight",
        ),
        (
            lambda: find("mlp", TASK, Random(), sparsity=0.5, include=["fc1.*", "features.*"]),
            SettingError,
            "no parameter matches 'features",
        ),
        (
            lambda: find("mlp", TASK, AP(sparsity=0.2, steps=5), sparsity=0.9),
            SettingError,
            r"ap comes with sparsity=0\.2, but find searches with 0\.9: leave sparsity out",
        ),
        (
            lambda: find("mlp", TASK, AP(steps=5), sparsity=0.9, recipe=Recipe(6, 0.1)),
            SettingError,
            "ap comes with steps=5, but find searches with 6: leave steps out",
        ),
        (
            lambda: find("mlp", TASK, Random(), sparsity=0.5, device="gpu"),
            SettingError,
            "unknown device",
        ),
    ],
)
def test_bad_input_is_said_in_one_line(
    go: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        go()
    assert "\n" not in str(caught.value)
