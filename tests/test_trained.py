"""The file of a trained network: the same after loading, small, checked, and never code."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import aprune.trained
from aprune import Recipe, Trained, build_parent, find, load_model, load_task, transfer
from aprune.errors import ApruneError, FileError, ParentError
from aprune.methods import Random
from helpers import Change, altered

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=10, lr=0.05)


def sparse_model(parent: str = "mlp", sparsity: float = 0.95) -> Trained:
    arch = find(parent, TASK, Random(), sparsity=sparsity)
    return transfer(arch, parent, TASK, recipe=QUICK, device="cpu").trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "good.safetensors"
    sparse_model().save(path)
    return path


@pytest.mark.parametrize("parent", ["mlp", "conv_bn", "resnet20"])
def test_loading_gives_back_what_was_saved(tmp_path: Path, parent: str) -> None:
    trained = sparse_model(parent)
    trained.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    mine, theirs = trained.model.state_dict(), loaded.model.state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
        assert value.dtype == theirs[name].dtype
    assert not loaded.model.training
    assert torch.equal(loaded.predict(TASK.test_images), trained.predict(TASK.test_images))
    assert (loaded.parent, loaded.shape, loaded.classes) == (parent, (1, 8, 8), ("0", "1", "2"))
    assert dict(loaded.provenance) == json.loads(json.dumps(dict(trained.provenance)))


def test_the_same_network_makes_the_same_file(tmp_path: Path) -> None:
    trained = replace(sparse_model(), classes=("Ä", "b", '"'))
    files = set()
    for _ in range(8):  # safetensors alone would take one of six orders each time
        trained.save(tmp_path / "model.safetensors")
        files.add((tmp_path / "model.safetensors").read_bytes())
    assert len(files) == 1
    assert load_model(tmp_path / "model.safetensors").classes == trained.classes


def test_what_is_sparse_takes_little_room(tmp_path: Path) -> None:
    sizes = {}
    for sparsity in (0.0, 0.95, 0.99):
        path = tmp_path / f"{sparsity}.safetensors"
        sparse_model(sparsity=sparsity).save(path)
        sizes[sparsity] = path.stat().st_size
    connections = 64 * 256 + 256 * 128 + 128 * 3
    assert sizes[0.0] > 4 * connections
    # a bit a place and four bytes a weight, and some kilobytes for names, biases and provenance
    assert sizes[0.95] < connections / 8 + 0.05 * 4 * connections + 8_000
    assert sizes[0.99] < connections / 8 + 0.01 * 4 * connections + 8_000


def test_predictions_take_pixels_of_the_right_kind() -> None:
    trained = sparse_model()
    for images in (torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ApruneError, match=r"expected torch.uint8 of shape \(N, 1, 8, 8\)"):
            trained.predict(images)
    assert trained.predict(TASK.test_images[:0]).shape == (0,)


def drop_a_tensor(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    del tensors["dense:fc1.bias"]


def one_value_for_all(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["values:fc1.weight"] = tensors["values:fc1.weight"][:1]


def too_few_bits(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["bits:fc1.weight"] = tensors["bits:fc1.weight"][:-1]


def bits_of_another_type(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["bits:fc1.weight"] = tensors["bits:fc1.weight"].view(torch.int8)


def wrong_shape(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["dense:fc1.bias"] = tensors["dense:fc1.bias"][:-1]


def wrong_mean(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["mean"] = torch.zeros(3)


def no_classes(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    del about["classes"]


def more_classes(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["classes"] = ["a", "b", "c", "d"]


def endless_images(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["shape"] = [1, float("inf"), 8]


def huge_images(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["shape"] = [1, 10**6, 10**6]


def images_too_small(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["parent"], about["shape"] = "vgg11", [1, 8, 8]


def another_parent(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["parent"] = "conv"


@pytest.mark.parametrize(
    "change",
    [
        drop_a_tensor,
        one_value_for_all,
        too_few_bits,
        bits_of_another_type,
        wrong_shape,
        wrong_mean,
        no_classes,
        more_classes,
        endless_images,
        huge_images,
        images_too_small,
        another_parent,
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    saved: Path, tmp_path: Path, change: Change
) -> None:
    path = altered(saved, tmp_path / "bad.safetensors", change)
    with pytest.raises(FileError, match="is damaged or does not fit its parent") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parent", "shape"), [("vgg19", [3, 32, 32]), ("mlp", [1, 4096, 4096]), ("logistic", [1, 9, 8])]
)
def test_sizes_are_checked_before_the_network_is_built(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, shape: list[int]
) -> None:
    def enlarge(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        about["parent"], about["shape"] = parent, shape

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("memory was asked for")

    path = altered(saved, tmp_path / "large.safetensors", enlarge)
    monkeypatch.setattr(aprune.trained, "parent_for", refuse)
    with pytest.raises(FileError, match="is damaged or does not fit its parent"):
        load_model(path)


def one_tensor_more(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["dense:fc4.bias"] = torch.zeros(3)


def two_ways_at_once(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["dense:fc3.weight"] = torch.zeros(3, 128)


def whole_numbers(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["dense:fc1.bias"] = torch.zeros(256, dtype=torch.int64)


def complex_numbers(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["values:fc1.weight"] = tensors["values:fc1.weight"].to(torch.complex64)


def text_for_a_size(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["shape"] = ["1", "8", "8"]


def a_name_for_all_classes(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["classes"] = "abc"


def provenance_of_pairs(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["provenance"] = [["run", "x"]]


@pytest.mark.parametrize(
    "change",
    [
        one_tensor_more,
        two_ways_at_once,
        whole_numbers,
        complex_numbers,
        text_for_a_size,
        a_name_for_all_classes,
        provenance_of_pairs,
    ],
)
def test_nothing_but_what_save_writes_is_taken(saved: Path, tmp_path: Path, change: Change) -> None:
    with pytest.raises(FileError, match="is damaged or does not fit its parent"):
        load_model(altered(saved, tmp_path / "odd.safetensors", change))


def test_the_name_of_a_parent_is_quoted_in_one_short_line(saved: Path, tmp_path: Path) -> None:
    def rename(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        about["parent"] = "a\nb" * 1000

    with pytest.raises(FileError, match="not one of aprune's") as caught:
        load_model(altered(saved, tmp_path / "named.safetensors", rename))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="no ordinary file"):
        load_model(tmp_path / "pipe")


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, 5_000, -1])
def test_a_truncated_file_is_refused(saved: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(FileError):
        load_model(path)


def test_foreign_newer_and_missing_files_are_refused(saved: Path, tmp_path: Path) -> None:
    path = altered(saved, tmp_path / "other.safetensors", lambda *_: None, format="somebody.else")
    with pytest.raises(FileError, match="is no model of aprune's"):
        load_model(path)
    path = altered(saved, tmp_path / "new.safetensors", lambda *_: None, version="3")
    with pytest.raises(FileError, match="written by a newer aprune: upgrade"):
        load_model(path)
    path = altered(saved, tmp_path / "text.safetensors", lambda *_: None, about="{")
    with pytest.raises(FileError, match="is damaged"):
        load_model(path)
    save_file({"x": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(FileError, match="is no model of aprune's"):
        load_model(tmp_path / "plain.safetensors")
    with pytest.raises(FileError, match="cannot read"):
        load_model(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileError):
        load_model(tmp_path)
    find("mlp", TASK, Random(), sparsity=0.5).save(tmp_path / "an.arch.safetensors")
    with pytest.raises(FileError, match="is no model of aprune's"):
        load_model(tmp_path / "an.arch.safetensors")


def test_a_file_names_no_code_to_run(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap_of_a_stranger.py").write_text(
        "from pathlib import Path\n"
        "from aprune import build_parent\n"
        "(Path(__file__).parent / 'sprung').touch()\n"
        "def make(task):\n"
        "    return build_parent('mlp', task)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def stranger(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        about["parent"] = "trap_of_a_stranger:make"

    path = altered(saved, tmp_path / "trap.safetensors", stranger)
    with pytest.raises(FileError, match="'trap_of_a_stranger:make', which is not one of aprune's"):
        load_model(path)
    assert "trap_of_a_stranger" not in sys.modules
    assert not (tmp_path / "sprung").exists()
    # whoever loads it may say so, and then it is their word
    loaded = load_model(path, parent="trap_of_a_stranger:make")
    monkeypatch.delitem(sys.modules, "trap_of_a_stranger")
    assert (tmp_path / "sprung").exists()
    expected = load_model(saved).predict(TASK.test_images)
    assert torch.equal(loaded.predict(TASK.test_images), expected)


def flat_net(task: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, len(task.classes)))


def test_a_network_of_one_s_own_is_loaded_with_its_function(tmp_path: Path) -> None:
    result = transfer(None, flat_net, TASK, recipe=QUICK, device="cpu")
    path = tmp_path / "mine.safetensors"
    result.save(path)
    with pytest.raises(FileError, match="'Sequential', which is not one of aprune's parents: say"):
        load_model(path)
    for parent in (flat_net, flat_net(TASK)):
        loaded = load_model(path, parent=parent)
        expected = result.predict(TASK.test_images)
        assert torch.equal(loaded.predict(TASK.test_images), expected)
    with pytest.raises(FileError, match="does not fit"):
        load_model(path, parent=build_parent("mlp", TASK))
    with pytest.raises(ParentError):
        load_model(path, parent=lambda task: nn.Flatten())


def test_layers_that_share_a_tensor_are_saved(tmp_path: Path) -> None:
    def tied(task: Any) -> nn.Module:
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        )
        net[3].weight = net[2].weight
        return net

    result = transfer(None, tied, TASK, recipe=QUICK, device="cpu")
    result.save(tmp_path / "tied.safetensors")
    loaded = load_model(tmp_path / "tied.safetensors", parent=tied)
    assert torch.equal(loaded.predict(TASK.test_images), result.predict(TASK.test_images))


def test_whatever_a_task_says_of_itself_is_written(tmp_path: Path) -> None:
    trained = Trained.of(build_parent("mlp", TASK), TASK, {"from": Path("folder"), "n": 3})
    trained.save(tmp_path / "model.safetensors")
    assert dict(load_model(tmp_path / "model.safetensors").provenance) == {"from": "folder", "n": 3}


def test_what_cannot_be_written_leaves_nothing_behind(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = load_model(saved)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        trained.save(tmp_path / "file" / "model.safetensors")

    def full(*_: Any, **__: Any) -> Iterator[bytes]:
        yield b"the beginning"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(aprune.trained, "pieces_of", full)
    with pytest.raises(FileError, match="No space left on device"):
        trained.save(tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
