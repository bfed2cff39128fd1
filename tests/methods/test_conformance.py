"""What every method of the table promises, tried with each of them."""

import copy
import dataclasses
import itertools
import json
import re

import pytest
import torch
from torch import nn

from aprune import Recipe, find, load_task, transfer
from aprune.cli.methods import meanings_of
from aprune.connections import find_connections
from aprune.errors import SettingError
from aprune.finding import search
from aprune.maths.select import keep_count
from aprune.methods import METHODS, Method, find_method
from aprune.parents import build_parent, vgg
from aprune.tasks import Task

TASK = load_task("digits", classes=[0, 1, 2, 3], images=200, seed=0)
LARGE = load_task("digits", classes=[0, 1, 2, 3], images=40, seed=0, size=32)
QUICK = Recipe(steps=16, lr=0.03, batch=32)
SPARSITIES = [0.3, 0.5, 0.9, 0.987]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return find_method(request.param)


def with_garbage_tests(task: Task) -> Task:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (7, *task.shape), generator=generator).to(torch.uint8)
    return dataclasses.replace(
        task, test_images=noise, test_labels=torch.zeros(7, dtype=torch.int64)
    )


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make VGG networks with few units; everything else about them stays."""
    monkeypatch.setattr(vgg, "_WIDTHS", (4, 6, 8, 8, 8))
    monkeypatch.setattr(vgg, "_HIDDEN", 16)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("parent", ["mlp", "conv", "conv_bn", "vgg11", "vgg11_bn", "resnet20"])
def test_every_sparsity_is_met_to_the_connection(method: Method, parent: str) -> None:
    task = LARGE if parent.startswith("vgg") else TASK
    found = find(parent, task, method, sparsity=SPARSITIES, recipe=QUICK, device="cpu")
    shapes = {n: tuple(p.shape) for n, p in find_connections(build_parent(parent, task)).items()}
    for sparsity, arch in zip(SPARSITIES, found, strict=True):
        assert set(arch.empty_layers()) == {n for n, m in arch.masks().items() if not m.any()}
        assert dict(arch.shapes) == shapes
        assert arch.kept == sum(int(mask.sum()) for mask in arch.masks().values())
        assert arch.kept == keep_count(arch.total, sparsity)
        assert arch.provenance["sparsity"] == sparsity
        assert arch.provenance["method"] == method.name


def test_a_seed_decides_bit_for_bit(method: Method) -> None:
    runs = [
        find("mlp", TASK, method, sparsity=[0.5, 0.9], seed=seed, recipe=QUICK, device="cpu")
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0].provenance == runs[1][0].provenance
    for one, other in zip(runs[0], runs[2], strict=True):
        assert one != other


def test_test_images_are_never_used(method: Method) -> None:
    spoilt = with_garbage_tests(TASK)
    found, other = (
        find("conv_bn", task, method, sparsity=[0.5, 0.9], recipe=QUICK, device="cpu")
        for task in (TASK, spoilt)
    )
    assert found == other


def test_fewer_are_among_more_where_a_method_promises_it(method: Method) -> None:
    found = find("mlp", TASK, method, sparsity=SPARSITIES, recipe=QUICK, device="cpu")
    shared = [fewer.overlap(more).shared for more, fewer in itertools.pairwise(found)]
    if method.nested:
        assert shared == [fewer.kept for fewer in found[1:]]


def test_a_parent_keeps_its_memory_format_and_its_dtypes(method: Method) -> None:
    parent = build_parent("conv_bn", TASK).to(memory_format=torch.channels_last)
    found = search(
        parent, TASK, method, sparsities=[0.9], recipe=QUICK, weights=method.trains, device="cpu"
    )
    arch = found.architectures[0]
    assert arch.kept == keep_count(arch.total, 0.9)
    for network in found.networks:
        kept = dict(network.model.named_parameters())
        assert {name: p.dtype for name, p in kept.items()} == {
            name: p.dtype for name, p in parent.named_parameters()
        }
        assert {name: p.stride() for name, p in kept.items()} == {
            name: p.stride() for name, p in parent.named_parameters()
        }


def test_training_images_matter_to_methods_that_look_at_them(method: Method) -> None:
    order = torch.arange(len(TASK.train_labels)).flip(0)
    other = dataclasses.replace(TASK, train_labels=TASK.train_labels[order])
    longer = QUICK.but(steps=60, lr=0.1)
    one, two = (
        find("mlp", task, method, sparsity=0.9, recipe=longer, device="cpu")
        for task in (TASK, other)
    )
    assert (one == two) != method.looks


def test_the_world_outside_stays_as_it_was(method: Method) -> None:
    mine = build_parent("mlp", TASK, seed=5)
    before, numbers = copy.deepcopy(mine.state_dict()), torch.get_rng_state()
    find(mine, TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
    assert torch.equal(torch.get_rng_state(), numbers)
    assert mine.training
    assert list(mine.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert all(parameter.grad is None for parameter in mine.parameters())


def test_the_parent_may_be_a_name_a_network_or_a_function(method: Method) -> None:
    ways = ["mlp", build_parent("mlp", TASK), lambda task: build_parent("mlp", task)]
    found = [find(way, TASK, method, sparsity=0.5, recipe=QUICK, device="cpu") for way in ways]
    assert found[0] == found[1] == found[2]


def test_only_what_is_included_is_chosen_from(method: Method) -> None:
    arch = find("mlp", TASK, method, sparsity=0.5, recipe=QUICK, exclude="fc3.*", device="cpu")
    assert arch.names == ("fc1.weight", "fc2.weight")
    arch = find("mlp", TASK, method, sparsity=0.5, recipe=QUICK, include="fc2.*", device="cpu")
    assert arch.names == ("fc2.weight", "fc2.bias")
    assert arch.kept == keep_count(256 * 128 + 128, 0.5)


def test_no_sparsity_is_the_whole_parent(method: Method) -> None:
    first, last = find("mlp", TASK, method, sparsity=[0.0, 0.9], recipe=QUICK, device="cpu")
    assert first.kept == first.total
    assert last.kept < last.total
    alone = find("mlp", TASK, method, sparsity=0.0, recipe=QUICK, device="cpu")
    assert alone.kept == alone.total


class Attentive(nn.Module):
    """Rows of a digit look at each other; drops at random in training, and one weight is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.score = nn.Linear(64, 4)
        self.attend.out_proj.weight.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = images[:, 0]
        return self.score(self.attend(rows, rows, rows, need_weights=False)[0].flatten(1))


def test_networks_that_drop_and_networks_with_frozen_weights(method: Method) -> None:
    numbers = torch.get_rng_state()
    runs = [
        find(Attentive(), TASK, method, sparsity=0.5, recipe=QUICK, device="cpu") for _ in range(2)
    ]
    torch.set_rng_state(numbers)
    assert runs[0] == runs[1]
    assert runs[0].kept == keep_count(runs[0].total, 0.5)
    parent = Attentive()
    before = torch.get_rng_state()
    find(parent, TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_its_settings_are_plain_and_frozen(method: Method) -> None:
    arch = find("mlp", TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
    assert json.loads(json.dumps(arch.provenance["settings"])) == arch.provenance["settings"]
    always = {f.name for f in dataclasses.fields(method) if not f.metadata.get("unless_default")}
    assert set(arch.provenance["settings"]) == always
    assert hash(method) == hash(find_method(method.name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.name = "other"  # type: ignore[misc]


def test_each_setting_has_a_sentence_that_says_what_it_means(method: Method) -> None:
    meanings = meanings_of(method)
    chosen = [f.name for f in dataclasses.fields(method) if not f.metadata.get("set_by_find")]
    for name in chosen:
        assert re.fullmatch(r"\S.{10,}\.", meanings.get(name, "")), name


def test_weights_are_those_of_the_architecture(method: Method) -> None:
    def go() -> object:
        return search(
            "mlp", TASK, method, sparsities=[0.5, 0.9], recipe=QUICK, weights=True, device="cpu"
        )

    if not method.trains:
        with pytest.raises(SettingError, match=f"{method.name} trains nothing"):
            go()
        return
    found = go()
    for arch, network in zip(found.architectures, found.networks, strict=True):
        weights = dict(network.model.named_parameters())
        for name, mask in arch.masks().items():
            assert not weights[name][~mask].any()
            assert weights[name][mask].count_nonzero() > 0.5 * mask.sum()
        assert not network.model.training


COSTS = {"ap": 16, "random": 0, "erk": 0, "magnitude": 16, "imp": 15, "snip": 1, "grasp": 3}
COSTS |= {"synflow": 100, "edge_popup": 16, "continuous": 16, "set": 16, "rigl": 16}


@pytest.mark.parametrize("sparsities", [[0.5], [0.5, 0.9]])
def test_the_cost_of_an_architecture_is_told(method: Method, sparsities: list[float]) -> None:
    found = search("mlp", TASK, method, sparsities=sparsities, recipe=QUICK, device="cpu")
    assert found.steps == COSTS[method.name]
    assert all(arch.provenance["steps"] == found.steps for arch in found.architectures)
    if method.trains:
        assert sum(len(curve.loss) for curve in found.curves) % found.steps == 0


def test_a_sparsity_that_leaves_nothing_fails_before_any_work(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be searched")

    monkeypatch.setattr(type(method), "search", refuse)
    with pytest.raises(SettingError, match="leaves nothing of 49,664 connections"):
        find("mlp", TASK, method, sparsity=[0.5, 0.999999], recipe=QUICK, device="cpu")


def test_it_says_what_it_is(method: Method) -> None:
    assert method.summary
    assert len(method.summary) < 60
    assert method.cost
    assert type(method).__doc__
    assert bool(method.source) == (method.name != "random")


def test_names_find_methods() -> None:
    assert set(METHODS) >= {"ap", "imp", "random"}
    with pytest.raises(
        SettingError, match="unknown method 'magic': expected one of ap, random, erk"
    ):
        find_method("magic")


def test_a_parent_may_be_in_double_precision(method: Method) -> None:
    parent = build_parent("conv_bn", TASK).double()
    found = find(parent, TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
    result = transfer(found, parent, TASK, recipe=QUICK, device="cpu")
    assert {p.dtype for p in result.model.parameters()} == {torch.float64}
    assert result.accuracy > 0.3  # of four classes: it has been trained
