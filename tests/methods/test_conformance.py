"""What every method of the table promises, tried with each of them."""

import copy
import dataclasses
import json

import pytest
import torch

from aprune import Recipe, find, load_task
from aprune.connections import find_connections
from aprune.errors import SettingError
from aprune.finding import search
from aprune.maths.select import keep_count
from aprune.methods import METHODS, Method, find_method
from aprune.parents import build_parent
from aprune.tasks import Task

TASK = load_task("digits", classes=[0, 1, 2, 3], images=200, seed=0)
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


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_every_sparsity_is_met_to_the_connection(method: Method, parent: str) -> None:
    found = find(parent, TASK, method, sparsity=SPARSITIES, recipe=QUICK, device="cpu")
    shapes = {n: tuple(p.shape) for n, p in find_connections(build_parent(parent, TASK)).items()}
    for sparsity, arch in zip(SPARSITIES, found, strict=True):
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


def test_training_images_matter_to_methods_that_train(method: Method) -> None:
    order = torch.arange(len(TASK.train_labels)).flip(0)
    other = dataclasses.replace(TASK, train_labels=TASK.train_labels[order])
    one, two = (
        find("mlp", task, method, sparsity=0.9, recipe=QUICK, device="cpu")
        for task in (TASK, other)
    )
    assert (one == two) == (one.provenance["steps"] == 0)


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


def test_its_settings_are_plain_and_frozen(method: Method) -> None:
    arch = find("mlp", TASK, method, sparsity=0.5, recipe=QUICK, device="cpu")
    assert json.loads(json.dumps(arch.provenance["settings"])) == arch.provenance["settings"]
    assert set(arch.provenance["settings"]) == {f.name for f in dataclasses.fields(method)}
    assert hash(method) == hash(find_method(method.name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.name = "other"  # type: ignore[misc]


def test_weights_are_those_of_the_architecture(method: Method) -> None:
    def go() -> object:
        return search(
            "mlp", TASK, method, sparsities=[0.5, 0.9], recipe=QUICK, weights=True, device="cpu"
        )

    if method.name == "random":
        with pytest.raises(SettingError, match="random trains nothing"):
            go()
        return
    found = go()
    for arch, network in zip(found.architectures, found.networks, strict=True):
        weights = dict(network.model.named_parameters())
        for name, mask in arch.masks().items():
            assert torch.equal(weights[name] != 0, mask)
        assert not network.model.training


def test_the_cost_is_told(method: Method) -> None:
    found = search("mlp", TASK, method, sparsities=[0.5], recipe=QUICK, device="cpu")
    assert found.steps == sum(len(curve.loss) for curve in found.curves)
    assert found.steps == {"random": 0, "ap": 16, "imp": 15}[method.name]


def test_names_find_methods() -> None:
    assert set(METHODS) >= {"ap", "imp", "random"}
    with pytest.raises(SettingError, match="unknown method 'magic': expected one of ap, imp"):
        find_method("magic")
