"""`transfer(..., bare=True)`: one magnitude a tensor, and it still learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from aprune import (
    AP,
    Random,
    Recipe,
    Result,
    Retraining,
    find,
    find_connections,
    load_model,
    load_task,
    search,
    transfer,
    transfer_many,
)
from aprune.errors import SettingError

OLD = load_task("digits", classes=[0, 1, 2, 3], images=120, seed=0)
NEW = load_task("digits", classes=[5, 6, 7], images=60, seed=0)
QUICK = Recipe(steps=50, lr=0.1, batch=30)
STILL = Recipe(steps=2, lr=1.0, schedule=lambda step, steps: 0.0)  # weights end where they start


def magnitudes(weight: Tensor) -> int:
    return len(weight[weight != 0].abs().unique())


def retrain(arch: Any, parent: Any, recipe: Recipe = QUICK, **more: Any) -> Result:
    return transfer(arch, parent, NEW, recipe=recipe, bare=True, device="cpu", **more)


@pytest.mark.parametrize("parent", ["mlp", "conv", "conv_bn"])
def test_signs_are_enough_to_learn(parent: str) -> None:
    arch = find(parent, OLD, AP(), sparsity=0.9, recipe=QUICK, device="cpu")
    result = retrain(arch, parent)
    assert result.architecture is not None
    weights = dict(result.model.named_parameters())
    for name, mask in result.architecture.masks().items():
        assert torch.equal(weights[name] != 0, mask), name
        assert magnitudes(weights[name]) == 1, name
    real = [name for name in weights if name not in result.architecture.names]
    assert all(magnitudes(weights[name]) > 1 for name in real)  # biases and norms
    assert not any(parametrize.is_parametrized(module) for module in result.model.modules())
    assert all(p.is_leaf and p.grad is None for p in result.model.parameters())
    # chance is ⅓
    assert retrain(arch, parent, STILL).accuracy < 0.7
    assert result.accuracy > 0.9
    right = result.predict(NEW.test_images) == NEW.test_labels
    assert result.accuracy == right.float().mean().item()


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_the_dense_parent_may_be_bare_too(parent: str) -> None:
    result = retrain(None, parent)
    assert result.architecture is None
    for weight in find_connections(result.model).values():
        assert bool((weight != 0).all())
        assert magnitudes(weight) == 1
    assert result.accuracy > 0.9
    assert retrain(None, parent, STILL).accuracy < 0.7


def test_a_seed_decides_bit_for_bit() -> None:
    arch = find("conv_bn", OLD, Random(), sparsity=0.8)
    runs = [retrain(arch, "conv_bn", seed=seed) for seed in (1, 1, 2)]
    states = [run.model.state_dict() for run in runs]
    assert runs[0].curve == runs[1].curve != runs[2].curve
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_only_bare_ones_say_so() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.8)
    bare = retrain(arch, "mlp", STILL)
    plain = transfer(arch, "mlp", NEW, recipe=STILL, device="cpu")
    assert bare.provenance["bare"] is True
    assert set(bare.provenance) - set(plain.provenance) == {"bare"}
    assert magnitudes(plain.model.fc1.weight) > 1


@pytest.mark.parametrize("how", ["include", "exclude"])
def test_what_is_no_connection_of_the_architecture_stays_real(how: str) -> None:
    chosen: dict[str, Any] = {"include": "*"} if how == "include" else {"exclude": "classifier.*"}
    arch = find("conv_bn", OLD, Random(), sparsity=0.5, **chosen)
    result = retrain(arch, "conv_bn")
    assert result.architecture is not None
    masks = result.architecture.masks()
    for name, weight in result.model.named_parameters():
        if name in masks:
            assert torch.equal(weight != 0, masks[name]) or weight.dim() == 1
            assert not weight[~masks[name]].any()
        bare = name in masks and weight.dim() > 1
        assert (magnitudes(weight) == 1) is bare, name


def test_an_architecture_of_biases_cannot_be_bare() -> None:
    arch = find("mlp", OLD, Random(), sparsity=0.5, include="*.bias")
    with pytest.raises(SettingError, match="nothing is left to be bare"):
        retrain(arch, "mlp")


def test_a_layer_may_be_empty() -> None:
    arch = find("conv_bn", OLD, Random(), sparsity=0.5)
    masks = dict(arch.masks())
    masks["features.3.weight"] = torch.zeros_like(masks["features.3.weight"])
    result = retrain(type(arch)(masks, arch.provenance), "conv_bn")
    assert not result.model.features[3].weight.any()
    assert all(bool(p.isfinite().all()) for p in result.model.parameters())


def test_it_may_start_from_other_weights() -> None:
    found = search("mlp", OLD, AP(), sparsities=[0.8], recipe=QUICK, weights=True, device="cpu")
    arch, start = found.architectures[0], found.networks[0]
    weight = start.model.fc1.weight.detach()
    seen = retrain(arch, "mlp", STILL, start_from=start).model.fc1.weight
    assert torch.equal(seen.sign(), weight.sign())
    assert seen.abs().max().item() == pytest.approx(weight[weight != 0].abs().mean().item())
    # what is bare already may go on; other connections than it has get fresh signs
    first = retrain(arch, "mlp", start_from=start)
    other = find("mlp", OLD, Random(), sparsity=0.5, seed=4)
    for denser, recipe in ((other, STILL), (other, QUICK), (None, STILL)):
        again = retrain(denser, "mlp", recipe, start_from=first.trained)
        weights = dict(again.model.named_parameters())
        for name in ("fc1.weight", "fc2.weight"):
            mask = torch.ones_like(weights[name]) > 0 if denser is None else denser.mask(name)
            assert torch.equal(weights[name] != 0, mask)
            assert magnitudes(weights[name]) == 1
            if recipe is STILL:
                both = mask & arch.mask(name)
                had = first.model.get_parameter(name)
                assert torch.equal(weights[name][both].sign(), had[both].sign())
                drawn = weights[name][mask & ~both].sign()
                assert drawn.mean().abs().item() < 0.1
        assert again.provenance["init"] == "start_from"
        assert again.accuracy > 0.9 or recipe is STILL


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    arch = find("conv_bn", OLD, Random(), sparsity=0.8)
    for number, result in enumerate((retrain(arch, "conv_bn"), retrain(None, "conv_bn"))):
        path = tmp_path / f"{number}.model.safetensors"
        result.save(path)
        loaded = load_model(path)
        mine, theirs = result.model.state_dict(), loaded.model.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert torch.equal(loaded.predict(NEW.test_images), result.predict(NEW.test_images))
        assert loaded.provenance["bare"] is True


def test_recurrent_layers_may_be_bare() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.LSTM(8, 16, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.head(self.rows(images.squeeze(1))[0][:, -1])
            return scores

    parent, recipe = Rows(), QUICK.but(steps=100, lr=0.2)
    todo = [Retraining(None, parent, NEW, seed, recipe, bare=True) for seed in range(2)]
    for retraining, result in transfer_many(todo, device="cpu"):
        assert isinstance(result, Result)
        assert magnitudes(result.model.rows.weight_hh_l0) == 1
        assert result.accuracy > 0.8
        # a layer with several weights draws them in the same order when its place is used again
        alone = retrain(None, parent, recipe, seed=retraining.seed)
        assert all(map(torch.equal, result.model.parameters(), alone.model.parameters()))
