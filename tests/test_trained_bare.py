"""The file of a bare network: two bits a connection at most, the same after loading, and checked."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from aprune import Random, Recipe, Trained, find, load_model, load_task, transfer
from aprune.errors import FileError
from helpers import altered

TASK = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=10, lr=0.05)


def odd_net(task: Any) -> nn.Module:
    """A network whose last tensor, of 27 places, does not fill its bytes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, len(task.classes)))


def bare_model(parent: Any = "mlp", sparsity: float | None = 0.9) -> Trained:
    arch = None if sparsity is None else find(parent, TASK, Random(), sparsity=sparsity)
    return transfer(arch, parent, TASK, recipe=QUICK, bare=True, device="cpu").trained


def read(path: Path) -> tuple[dict[str, Tensor], str]:
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata()["version"]


@pytest.mark.parametrize("parent", ["mlp", "conv_bn", "resnet20"])
@pytest.mark.parametrize("sparsity", [0.9, None])
def test_loading_gives_back_what_was_saved(
    tmp_path: Path, parent: str, sparsity: float | None
) -> None:
    trained = bare_model(parent, sparsity)
    trained.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    mine, theirs = trained.model.state_dict(), loaded.model.state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
        assert value.dtype == theirs[name].dtype
    assert torch.equal(loaded.predict(TASK.test_images), trained.predict(TASK.test_images))


@pytest.mark.parametrize("sparsity", [0.98, 0.9, 0.5, None])
def test_a_connection_takes_two_bits_at_most(tmp_path: Path, sparsity: float | None) -> None:
    trained, path = bare_model(sparsity=sparsity), tmp_path / "model.safetensors"
    trained.save(path)
    tensors, version = read(path)
    assert version == "2"
    weights = {n: p for n, p in trained.model.named_parameters() if p.dim() == 2}
    for name, weight in weights.items():
        kept = int(weight.count_nonzero())
        parts = {kind: tensors.get(f"{kind}:{name}") for kind in ("bits", "signs", "scale")}
        sizes = {kind: 0 if p is None else p.nbytes for kind, p in parts.items()}
        there = 0 if sparsity is None else math.ceil(weight.numel() / 8)
        assert sizes == {"bits": there, "signs": math.ceil(kept / 8), "scale": 4}
        assert f"values:{name}" not in tensors
    # and the rest of the file: biases, names, provenance
    places = sum(weight.numel() for weight in weights.values())
    kept = sum(int(weight.count_nonzero()) for weight in weights.values())
    there = 0 if sparsity is None else places
    assert path.stat().st_size < (there + kept) / 8 + 4 * (256 + 128 + 3) + 4_000
    assert path.stat().st_size < places / 4 + 6_000


def test_files_of_others_are_as_they_were(tmp_path: Path) -> None:
    arch = find("mlp", TASK, Random(), sparsity=0.9)
    result = transfer(arch, "mlp", TASK, recipe=QUICK, device="cpu")
    result.save(tmp_path / "model.safetensors")
    tensors, version = read(tmp_path / "model.safetensors")
    assert version == "1"
    assert {name.partition(":")[0] for name in tensors} == {
        "bits",
        "values",
        "dense",
        "mean",
        "std",
    }


class Holder(nn.Module):
    """A network that holds one tensor."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
        self.layer = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layer(images.flatten(1))
        return scores


ONE = torch.tensor([[0.5, 0.0, -0.5], [-0.5, -0.5, 0.5]])


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (ONE, {"bits", "signs", "scale"}),
        (ONE.half(), {"bits", "signs", "scale"}),
        (ONE.double() / 3, {"bits", "signs", "scale"}),
        (ONE.reshape(1, 2, 3, 1), {"bits", "signs", "scale"}),
        (torch.full((3, 3), -2.0), {"signs", "scale"}),
        (torch.tensor([[0.0, 7.0]]), {"bits", "values"}),  # a single one needs no sign
        (torch.zeros(2, 3), {"bits", "values"}),
        (ONE[0], {"dense"}),
        (torch.tensor([[0.5, -0.25], [0.0, 0.0]]), {"bits", "values"}),
        (torch.tensor([[0.5, -0.25], [0.5, 0.5]]), {"dense"}),
        (torch.tensor([[torch.inf, -torch.inf]]), {"dense"}),
        (torch.tensor([[1, -1], [1, 1]]), {"dense"}),
        (torch.tensor([[True, True], [True, True]]), {"dense"}),
    ],
)
def test_what_is_stored_how(tmp_path: Path, value: Tensor, kinds: set[str]) -> None:
    path = tmp_path / "model.safetensors"
    Trained.of(Holder(value), TASK, {}).save(path)
    tensors, version = read(path)
    assert {name.partition(":")[0] for name in tensors if name.endswith(":value")} == kinds
    assert version == ("2" if "signs" in kinds else "1")
    loaded = load_model(path, parent=lambda task: Holder(torch.zeros_like(value))).model
    assert torch.equal(loaded.value, value)


def test_the_bits_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    Trained.of(Holder(ONE), TASK, {}).save(path)
    tensors, _ = read(path)
    assert tensors["bits:value"].tolist() == [0b111101]
    assert tensors["signs:value"].tolist() == [0b10001]  # + − − − +
    assert tensors["scale:value"].item() == 0.5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bare.safetensors"
    bare_model(odd_net, sparsity=0.5).save(path)
    tensors, _ = read(path)
    signs = int(sum(byte.bit_count() for byte in tensors["bits:3.weight"].tolist()))
    assert (len(tensors["bits:3.weight"]), signs % 8 > 0) == (4, True)
    return path


def put(name: str, made: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    def change(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        tensors[name] = made(tensors[name])

    return change


def drop(name: str) -> Callable[..., None]:
    def change(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        del tensors[name]

    return change


def last_bit_set(packed: Tensor) -> Tensor:
    return torch.cat([packed[:-1], packed[-1:] | 128])


def one_more_place(packed: Tensor) -> Tensor:
    """Set the lowest bit that is not set, which is a place without a connection."""
    first = int((packed != 255).nonzero()[0])
    changed = packed.clone()
    changed[first] |= int(packed[first]) + 1
    return changed


DAMAGE = {
    "no scale": drop("scale:1.weight"),
    "no signs": drop("signs:1.weight"),
    "no bits, so that all are there": drop("bits:1.weight"),
    "signs cut": put("signs:1.weight", lambda signs: signs[:-1]),
    "too many signs": put("signs:1.weight", lambda signs: torch.cat([signs, signs[:1] & 0])),
    "signs in two dimensions": put("signs:1.weight", lambda signs: signs[None]),
    "signs of another type": put("signs:1.weight", lambda signs: signs.view(torch.int8)),
    "signs as numbers": put("signs:1.weight", lambda signs: signs.float()),
    "a sign of nothing": put("signs:3.weight", last_bit_set),
    "bits cut": put("bits:3.weight", lambda bits: bits[:-1]),
    "bits of another type": put("bits:3.weight", lambda bits: bits.view(torch.int8)),
    "a bit of no place": put("bits:3.weight", last_bit_set),
    "a connection without a sign": put("bits:1.weight", one_more_place),
    "nan": put("scale:1.weight", lambda scale: scale * torch.nan),
    "inf": put("scale:1.weight", lambda scale: scale * torch.inf),
    "negative": put("scale:1.weight", lambda scale: -scale),
    "zero": put("scale:1.weight", lambda scale: scale * 0),
    "two scales": put("scale:1.weight", lambda scale: scale.repeat(2)),
    "a scale in a list": put("scale:1.weight", lambda scale: scale[None]),
    "a whole number": put("scale:1.weight", lambda scale: torch.tensor(1)),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_file_that_contradicts_itself_is_refused(
    saved: Path, tmp_path: Path, change: Callable[..., None]
) -> None:
    path = altered(saved, tmp_path / "bad.safetensors", change)
    with pytest.raises(FileError, match="is damaged or does not fit its parent") as caught:
        load_model(path, parent=odd_net)
    assert "\n" not in str(caught.value)


def test_bits_where_all_places_are_there_are_refused_if_they_say_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "dense.safetensors"
    bare_model(odd_net, sparsity=None).save(path)

    def add_bits(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        tensors["bits:1.weight"] = torch.full((72,), 254, dtype=torch.uint8)

    assert load_model(path, parent=odd_net).parent == "Sequential"
    bad = altered(path, tmp_path / "bad.safetensors", add_bits)
    with pytest.raises(FileError, match="is damaged"):
        load_model(bad, parent=odd_net)


def test_the_version_says_what_is_in_the_file(saved: Path, tmp_path: Path) -> None:
    path = altered(saved, tmp_path / "older.safetensors", lambda *_: None, version="1")
    with pytest.raises(FileError, match="is damaged"):
        load_model(path, parent=odd_net)
    transfer(None, odd_net, TASK, recipe=QUICK, device="cpu").save(tmp_path / "real.safetensors")
    path = altered(
        tmp_path / "real.safetensors", tmp_path / "x.safetensors", lambda *_: None, version="2"
    )
    with pytest.raises(FileError, match="is damaged"):
        load_model(path, parent=odd_net)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, 1_000, -1])
def test_a_truncated_file_is_refused(saved: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(FileError):
        load_model(path, parent=odd_net)
