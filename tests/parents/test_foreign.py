"""Networks, functions and module:factory specs that users bring along."""

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from aprune.errors import ParentError
from aprune.parents import build_parent, parent_for

DIGITS = SimpleNamespace(shape=(1, 8, 8), num_classes=10)
HALF = SimpleNamespace(shape=(1, 8, 8), num_classes=5)

SOURCE = """
import math
from torch import nn

def linear(task):
    from aprune_test_helper import inputs
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs(task), task.num_classes))

class Family:
    @staticmethod
    def make(task):
        return linear(task)

def fixed(task):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def broken(task):
    raise ValueError("no such\\n  luck")

def number(task):
    return 7

def quits(task):
    raise SystemExit(2)

constant = 3
ready = nn.Flatten()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "aprune_test_nets.py").write_text(SOURCE)
    (tmp_path / "aprune_test_helper.py").write_text(
        "from math import prod\ndef inputs(task):\n    return prod(task.shape)\n"
    )
    (tmp_path / "aprune_test_script.py").write_text("raise SystemExit('usage: …')\n")
    (tmp_path / "aprune_test_bad.py").write_text("import aprune_test_absent\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield "aprune_test_nets"
    for name in [name for name in sys.modules if name.startswith("aprune_test_")]:
        del sys.modules[name]


def linear(task: SimpleNamespace) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, task.num_classes))


class Recorder(nn.Module):
    """Notes in which mode it ran, and returns what it is told to."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.answer = answer
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.ran: list[tuple[bool, bool, torch.dtype]] = []

    def forward(self, images: Tensor) -> object:
        self.ran.append((self.training, torch.is_grad_enabled(), images.dtype))
        return self.answer(images)


def test_factory_of_the_current_directory(own_module: str) -> None:
    path, spec = list(sys.path), f"{own_module}:linear"
    network = build_parent(spec, DIGITS, seed=3)
    assert sys.path == path
    assert network.parent_name == spec
    assert network[1].weight.shape == (10, 64)
    assert torch.equal(network[1].weight, build_parent(spec, DIGITS, seed=3)[1].weight)
    assert not torch.equal(network[1].weight, build_parent(spec, DIGITS, seed=4)[1].weight)
    assert parent_for(network, HALF)[1].weight.shape == (5, 64)


def test_factory_within_a_class(own_module: str) -> None:
    assert build_parent(f"{own_module}:Family.make", HALF)[1].weight.shape == (5, 64)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("aprune_test_nowhere:net", r"ModuleNotFoundError: No module named 'aprune_test_nowhere'"),
        ("aprune_test_nets:absent", r"AttributeError: .* has no attribute 'absent'"),
        ("aprune_test_nets:", r"could not be imported \(AttributeError.*package\.module:factory"),
        ("aprune_test_nets.py:linear", r"factory, such as aprune_test_nets:linear$"),
        ("./own/nets.py:linear", r"factory, such as own\.nets:linear$"),
        ("../nets.py:linear", r"expected package\.module:factory$"),
        (":net", r"could not be imported \(ValueError: Empty module name\)"),
        ("aprune_test_bad:net", r"No module named 'aprune_test_absent'"),
        ("aprune_test_script:net", r"could not be imported \(SystemExit: usage"),
        ("aprune_test_nets:broken", r"raised ValueError: no such luck when called"),
        ("aprune_test_nets:quits", r"raised SystemExit: 2 when called"),
        ("aprune_test_nets:number", r"returned an object of type int; expected a torch.nn.Module"),
        ("aprune_test_nets:constant", r"is an object of type int; expected a function"),
        ("aprune_test_nets:ready", r"is an object of type Flatten; expected a function"),
        ("aprune_test_nets:fixed", r"an output of shape \[2, 3\] .* expected \[2, 10\]; build it"),
    ],
)
def test_bad_spec_in_one_line(own_module: str, spec: str, said: str) -> None:
    path = list(sys.path)
    with pytest.raises(ParentError, match=said) as caught:
        build_parent(spec, DIGITS)
    assert f"parent {spec!r}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sys.path == path


def test_a_network_is_copied_and_left_alone() -> None:
    network = linear(DIGITS)
    network[0].eval()
    before = copy.deepcopy(network.state_dict())
    copied = parent_for(network, DIGITS)
    with torch.no_grad():
        copied[1].weight.zero_()
    assert torch.equal(network[1].weight, before["1.weight"])
    assert [module.training for module in copied.modules()] == [True, False, True]
    assert not hasattr(network, "parent_name")


def test_the_trial_runs_once_in_evaluation_mode_without_gradients() -> None:
    network = Recorder(lambda images: images.flatten(1)[:, :10])
    copied = parent_for(network, DIGITS)
    assert copied.ran == [(False, False, torch.float64)]
    assert network.ran == []
    assert copied.training


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda images: images.flatten(1), r"gives an output of shape \[2, 64\]"),
        (lambda images: images.flatten(1)[0, :10], r"gives an output of shape \[10\]"),
        (lambda images: (images, images), r"gives an object of type tuple"),
        (lambda images: None, r"gives None"),
        (lambda images: images.reshape(5, 5), r"fails on two images of shape \[1, 8, 8\] \(Runt"),
    ],
)
def test_a_network_that_does_not_fit(answer: Callable[[Tensor], object], said: str) -> None:
    network = Recorder(answer)
    with pytest.raises(ParentError, match=said) as caught:
        parent_for(network, DIGITS)
    message = str(caught.value)
    assert "[2, 10]" in message
    assert message.endswith("pass a function that builds it for a task")
    assert "\n" not in message


def test_a_name_that_is_not_ours_does_not_make_a_network_ours() -> None:
    network = linear(DIGITS)
    network.parent_name = "alice"
    with pytest.raises(ParentError, match="pass a function that builds it for a task"):
        parent_for(network, HALF)


def test_a_network_that_cannot_be_copied() -> None:
    network = linear(DIGITS)
    network.cached = network[1].weight * 2
    with pytest.raises(ParentError, match="the network Sequential cannot be copied"):
        parent_for(network, DIGITS)


@pytest.mark.filterwarnings("ignore:Lazy modules")  # older PyTorch warns that they are new
def test_a_lazy_network_takes_its_shape_from_the_task() -> None:
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    copied = parent_for(lazy, DIGITS, seed=1)
    assert copied[1].weight.shape == (10, 64)
    assert torch.equal(copied[1].weight, parent_for(lazy, DIGITS, seed=1)[1].weight)


def test_a_function_is_called_with_the_task_and_the_seed() -> None:
    network = parent_for(linear, HALF, seed=2)
    assert network[1].weight.shape == (5, 64)
    assert torch.equal(network[1].weight, parent_for(linear, HALF, seed=2)[1].weight)
    assert not torch.equal(network[1].weight, parent_for(linear, HALF, seed=3)[1].weight)


def test_a_function_that_hands_out_one_network_twice() -> None:
    shared = linear(DIGITS)
    assert parent_for(lambda task: shared, DIGITS)[1].weight is not shared[1].weight


def test_functions_that_fail() -> None:
    with pytest.raises(ParentError, match="the function linear fails on two images of shape"):
        parent_for(linear, SimpleNamespace(shape=(1, 4, 4), num_classes=10))
    with pytest.raises(ParentError, match="the function <lambda> returned None"):
        parent_for(lambda task: None, DIGITS)
    with pytest.raises(ParentError, match="at least 32×32"):
        parent_for(lambda task: build_parent("vgg11", task), DIGITS)


def test_neither_name_nor_network_nor_function() -> None:
    with pytest.raises(ParentError, match="a parent of type int was given; expected a name"):
        parent_for(3, DIGITS)
