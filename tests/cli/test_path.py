"""The whole path: find, transfer, show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from aprune.architecture import Architecture
from aprune.methods import METHODS
from aprune.trained import load_model

NEW = ("--task", "digits", "--classes", "5,6,7,8,9", "--images", 50, "--steps", 40)
MLP = 64 * 256 + 256 * 128 + 128 * 5  # connections for five classes of digits


def test_find_writes_exactly_what_it_says(archs: Path) -> None:
    assert sorted(path.name for path in archs.iterdir()) == [
        "mlp-digits-ap-0.5-seed0.arch.safetensors",
        "mlp-digits-ap-0.5-seed0.model.safetensors",
        "mlp-digits-ap-0.9-seed0.arch.safetensors",
        "mlp-digits-ap-0.9-seed0.model.safetensors",
    ]
    for sparsity, kept in ((0.5, 24896), (0.9, 4979)):
        found = Architecture.load(archs / f"mlp-digits-ap-{sparsity}-seed0.arch.safetensors")
        assert (found.total, found.kept) == (MLP, kept)
        assert found.provenance["recipe"]["steps"] == 60
        assert found.provenance["recipe"]["batch"] == 32
        assert found.provenance["task"]["classes"] == [0, 1, 2, 3, 4]
        weights = load_model(archs / f"mlp-digits-ap-{sparsity}-seed0.model.safetensors")
        for name, weight in weights.model.named_parameters():
            if name in found.names:
                assert not weight[~found.mask(name)].any()


def test_find_prints_a_table(aprune: Callable[..., Any], tmp_path: Path) -> None:
    ended = aprune(
        *("find", "--parent", "mlp", "--task", "digits", "--sparsity", "0.75,0.75", "--steps", 30),
        *("--seed", 7, "--out", tmp_path, "--classes", 3),
    )
    assert ended.status == 0
    assert ended.err == ""
    file = tmp_path / "mlp-digits-ap-0.75-seed7.arch.safetensors"
    # whole in one line, for whoever copies it out of a pipe
    assert sum(str(file) in line for line in ended.out.splitlines()) == 1
    assert "30 steps" in ended.out
    found = Architecture.load(file)
    assert f"{found.kept:,}" in ended.out
    assert f"{found.provenance['test_accuracy']:.1%}" in ended.out
    assert found.provenance["classes"] == 3


def test_find_as_json(aprune: Callable[..., Any], tmp_path: Path) -> None:
    ended = aprune(
        *(
            "find",
            "--parent",
            "mlp",
            "--task",
            "digits",
            "--method",
            "imp",
            "--sparsity",
            "0.9,0.5",
        ),
        *(
            "--set",
            "rounds=2",
            "--set",
            "rewind=3",
            "--steps",
            20,
            "--lr",
            0.05,
            "--json",
            "--out",
            tmp_path,
        ),
        *("--exclude", "fc1.weight", "--exclude", "fc1.bias"),
    )
    document = json.loads(ended.out)
    assert ended.err == ""
    assert [entry["sparsity"] for entry in document["architectures"]] == [0.9, 0.5]
    assert document["method"] == "imp"
    assert document["steps"] == 20
    assert document["test_accuracy"] is None
    found = Architecture.load(document["architectures"][0]["file"])
    assert (found.kept, found.total) == (
        document["architectures"][0]["connections"],
        document["architectures"][0]["of"],
    )
    assert found.names == ("fc2.weight", "fc3.weight")
    assert found.provenance["settings"]["rewind"] == 3
    assert found.provenance["recipe"]["lr"] == 0.05


def test_methods_are_listed_with_their_settings(aprune: Callable[..., Any]) -> None:
    listed = aprune("methods")
    assert all(name in listed.out for name in METHODS)
    assert max(len(line.rstrip()) for line in listed.out.splitlines()) < 130
    assert "paper" in listed.out
    one = aprune("methods", "rigl")
    assert all(word in one.out for word in ("Evci", "every", "fraction", "0.75", "a whole number"))
    assert "snip" not in one.out
    assert "falls to zero along a cosine" in one.out  # as it says itself, and not what SET says
    lines = {
        line.split()[0]: line for line in aprune("methods", "ap").out.splitlines() if line.split()
    }
    for word in ("constant, hold, inverse_sqrt, one_cycle or warm_up", "How α changes"):
        assert word in lines["w_schedule"]
    assert lines["record"].split()[1] == "false"
    assert lines["relative"].split()[1] == "true"
    assert lines["dense_start"].split()[1] == "none"
    assert "It has no settings." in aprune("methods", "erk").out
    (document,) = json.loads(aprune("methods", "ap", "--json").out)
    assert document["settings"]["t_l"] == 100.0
    assert not {"sparsity", "steps"} & set(document["settings"])
    assert len(json.loads(aprune("methods", "--json").out)) == len(METHODS)
    assert aprune("methods", "magic").status == 2


@pytest.mark.parametrize(("spread", "even"), [("layer", True), ("global", False)])
def test_find_random(aprune: Callable[..., Any], tmp_path: Path, spread: str, even: bool) -> None:
    ended = aprune(
        *("find", "--parent", "mlp", "--task", "digits", "--method", "random", "--sparsity", 0.5),
        *("--set", f"spread={spread}", "--out", tmp_path),
    )
    assert ended.status == 0
    found = Architecture.load(tmp_path / "mlp-digits-random-0.5-seed0.arch.safetensors")
    assert all(layer.density == 0.5 for layer in found.layers()) is even


@pytest.mark.parametrize("method", METHODS)
def test_find_has_words_for_every_method(
    aprune: Callable[..., Any], tmp_path: Path, method: str
) -> None:
    ended = aprune(
        *("find", "--parent", "mlp", "--task", "digits", "--method", method, "--sparsity", 0.9),
        *("--steps", 20, "--out", tmp_path),
    )
    untrained = "aprune: {} trains nothing: --steps makes no difference\n".format
    idle = method in ("random", "erk", "snip", "grasp", "synflow")
    assert (ended.status, ended.err) == (0, untrained(method) if idle else "")
    assert ("trained nothing" in ended.out) == (method in ("snip", "grasp", "synflow"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--method random --lr 3 --steps 5", "random trains nothing: --steps and --lr make no"),
        ("--method snip --batch 9", None),  # which is what it looks at
        ("--method synflow --batch 9", "synflow trains nothing: --batch makes no difference"),
        ("--method magnitude --steps 5", None),
        (
            "--method magnitude --steps 5 --set when=start",
            "magnitude trains nothing: --steps makes",
        ),
        ("--method imp --steps 10 --set rounds=2", None),
        (
            "--method imp --steps 10 --set rounds=2 --set steps=4",
            "steps=4 takes the place of --steps",
        ),
        ("--method imp --set rounds=2 --set steps=4", None),
        ("--method ap --steps 10 --lr 0.01 --batch 9", None),
    ],
)
def test_options_that_a_method_has_no_use_for_are_named(
    aprune: Callable[..., Any], tmp_path: Path, options: str, said: str | None
) -> None:
    find = ("find", "--parent", "logistic", "--task", "digits", "--sparsity", 0.5)
    ended = aprune(*find, *options.split(), "--out", tmp_path)
    assert ended.status == 0
    assert ended.err.count("\n") == (said is not None)
    assert (said or "") in ended.err


def test_a_single_step_is_one_step(aprune: Callable[..., Any], tmp_path: Path) -> None:
    one = ("--parent", "logistic", "--task", "digits", "--steps", 1)
    find = ("find", *one, "--sparsity", 0.5, "--out", tmp_path)
    assert "The search took 1 step;" in aprune(*find, "--method", "magnitude").out
    assert "The search took 1 step;" in aprune(*find, "--method", "continuous").out
    assert "The search took 1 step;" in aprune(*find, "--method", "set").out
    assert " in 1 step to " in aprune("transfer", "--dense", *one).out


def test_an_empty_layer_is_named_once(aprune: Callable[..., Any], tmp_path: Path) -> None:
    few = ("--sparsity", 0.99999, "--steps", 10, "--out", tmp_path)
    ended = aprune("find", "--parent", "mlp", "--task", "digits", *few)
    assert ended.status == 0
    (line,) = [line for line in ended.err.splitlines() if "one and the same output" not in line]
    assert line.startswith("aprune: warning: no connection is left in fc")
    assert " of mlp-digits-ap-0.99999-seed0, so nothing passes through" in line


def test_find_passes_on_the_settings_of_ap(aprune: Callable[..., Any], tmp_path: Path) -> None:
    wanted = {"t_l": 50, "t_s": 5, "gamma": "auto", "w_step": 0.02, "dense_start": None}
    wanted |= {"relative": False}
    ended = aprune(
        *("find", "--parent", "logistic", "--task", "digits", "--sparsity", 0.5, "--steps", 20),
        *(word for key, value in wanted.items() for word in ("--set", f"{key}={value}")),
        *("--out", tmp_path, "--device", "cpu"),
    )
    assert ended.status == 0
    (file,) = tmp_path.iterdir()
    settings = Architecture.load(file).provenance["settings"]
    assert {key: settings[key] for key in wanted} == wanted


def test_same_seed_same_file(aprune: Callable[..., Any], archs: Path, tmp_path: Path) -> None:
    ended = aprune(
        *("find", "--parent", "mlp", "--task", "digits", "--classes", "0,1,2,3,4"),
        *("--sparsity", "0.5,0.9", "--steps", 60, "--batch", 32, "--out", tmp_path),
    )
    assert ended.status == 0
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (archs / path.name).read_bytes()


def test_transfer_as_json(aprune: Callable[..., Any], arch: Path, tmp_path: Path) -> None:
    model = tmp_path / "new" / "small.model.safetensors"
    ended = aprune("transfer", arch, *NEW, "--seed", 0, "--json", "--out", model)
    document = json.loads(ended.out)
    assert (ended.status, ended.err) == (0, "")
    assert document["accuracy"] > 0.4  # chance is 0.2
    assert document["connections"] == 4979
    assert document["sparsity"] == pytest.approx(0.9, abs=1e-4)
    assert (document["steps"], document["seed"], document["parent"]) == (40, 0, "mlp")
    assert document["task"]["classes"] == [5, 6, 7, 8, 9]
    assert document["empty_layers"] == []
    assert document["out"] == str(model)
    loaded = load_model(model)
    weights = [w for w in loaded.model.parameters() if w.dim() > 1]
    assert sum(int(w.count_nonzero()) for w in weights) == 4979
    assert loaded.provenance["accuracy"] == document["accuracy"]


def test_transfer_says_it_in_words(aprune: Callable[..., Any], arch: Path) -> None:
    ended = aprune("transfer", arch, *NEW)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    for word in (
        "299 test images",
        "4,979 of 49,792 connections",
        "50 images of 5 classes",
        "40 steps",
    ):
        assert word in ended.out


def test_transfer_starts_from_the_weights_of_the_search(
    aprune: Callable[..., Any], archs: Path, arch: Path
) -> None:
    old = ("--task", "digits", "--classes", "0,1,2,3,4", "--steps", 1, "--lr", 1e-6, "--json")
    start = archs / "mlp-digits-ap-0.9-seed0.model.safetensors"
    tuned = json.loads(aprune("transfer", arch, *old, "--start-from", start).out)
    own = Architecture.load(arch).provenance["test_accuracy"]
    assert tuned["accuracy"] == pytest.approx(own, abs=0.01)
    assert own > 0.8
    assert tuned["init"] == "start_from"


def test_transfer_starts_from_weights_that_the_search_never_saw(
    aprune: Callable[..., Any], arch: Path
) -> None:
    # The mask was chosen for the weights that the search began with: drawn again, with the seed
    # of the search, they would know its task before the first step.
    old = ("--task", "digits", "--classes", "0,1,2,3,4", "--steps", 1, "--lr", 1e-6, "--json")
    for seed in (0, 1):
        assert json.loads(aprune("transfer", arch, *old, "--seed", seed).out)["accuracy"] < 0.5


def test_transfer_of_the_dense_parent(aprune: Callable[..., Any]) -> None:
    ended = aprune("transfer", "--dense", "--parent", "mlp", *NEW, "--json")
    document = json.loads(ended.out)
    assert (document["connections"], document["of"], document["sparsity"]) == (MLP, MLP, 0.0)
    assert document["accuracy"] > 0.4


def test_transfer_of_signs_alone(aprune: Callable[..., Any], arch: Path, tmp_path: Path) -> None:
    dense = ("--dense", "--parent", "mlp")
    for which, kept in (((arch,), 4979), (dense, MLP)):
        model = tmp_path / f"{kept}.model.safetensors"
        document = json.loads(
            aprune("transfer", *which, *NEW, "--bare", "--json", "--out", model).out
        )
        assert document["bare"] is True
        assert document["connections"] == kept
        assert document["accuracy"] > 0.4  # chance is 0.2
        weights = [w for w in load_model(model).model.parameters() if w.dim() > 1]
        assert sum(int(w.count_nonzero()) for w in weights) == kept
        assert all(len(w[w != 0].abs().unique()) == 1 for w in weights)
        assert model.stat().st_size < MLP / 4 + 6_000  # two bits a connection, and the rest
    ended = aprune("transfer", arch, *NEW, "--bare")
    assert "(sparsity 0.9, bare)" in ended.out
    ended = aprune("transfer", arch, *NEW, "--json")
    assert json.loads(ended.out)["bare"] is False


def test_transfer_to_other_shapes(aprune: Callable[..., Any], arch: Path) -> None:
    more = ("--task", "digits", "--size", 10, "--steps", 5, "--json", "--optimiser", "adam")
    for mismatch, first in (("random", None), ("dense", 100 * 256)):
        ended = aprune("transfer", arch, *more, "--lr", 0.001, "--mismatch", mismatch)
        document = json.loads(ended.out)
        assert document["of"] == 100 * 256 + 256 * 128 + 128 * 10
        assert document["recipe"]["optimiser"] == "adam"
        if first:
            assert document["connections"] > first


def test_transfer_never_imports_what_a_file_names(
    aprune: Callable[..., Any], arch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("open('sprung', 'w').close()\n")
    foreign = Architecture.load(arch).with_provenance(parent="trap:network")
    foreign.save(tmp_path / "foreign.arch.safetensors")
    ended = aprune("transfer", "foreign.arch.safetensors", *NEW)
    ended.assert_refused("trap:network", "--parent")
    assert not (tmp_path / "sprung").exists()
    ended = aprune("transfer", "foreign.arch.safetensors", *NEW, "--parent", "mlp", "--json")
    assert ended.status == 0


def test_parent_of_the_users_own(
    aprune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_network.py").write_text(
        "from torch import nn\n"
        "def make(task):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Linear(7, task.num_classes))\n"
    )
    find = ("find", "--parent", "their_network:make", "--task", "digits", "--sparsity", 0.5)
    ended = aprune(*find, "--steps", 10, "--out", "here")
    assert ended.status == 0, ended.err
    (file,) = Path("here").iterdir()
    assert file.name == "their_network_make-digits-ap-0.5-seed0.arch.safetensors"
    aprune("transfer", file, *NEW).assert_refused("their_network:make", "--parent")
    own = ("--parent", "their_network:make", "--out", "own.model.safetensors")
    ended = aprune("transfer", file, *NEW, *own, "--json")
    assert json.loads(ended.out)["of"] == 64 * 7 + 7 * 5
    Architecture.load(file).with_provenance(parent="mlp").save("renamed.arch.safetensors")
    again = ("transfer", "renamed.arch.safetensors", *NEW, "--start-from", "own.model.safetensors")
    aprune(*again).assert_refused("'their_network:make'", "with --parent module:factory")
    assert aprune(*again, *own).status == 0  # which does help
    nameless = Architecture(Architecture.load(file).masks(), {"method": "ap"})  # as after `attach`
    nameless.save("nameless.arch.safetensors")
    ended = aprune("transfer", "nameless.arch.safetensors", *NEW)
    ended.assert_refused(
        "does not say which parent it was found in", "--parent, a name or module:f"
    )
    assert aprune("transfer", "nameless.arch.safetensors", *NEW, *own).status == 0


def test_transfer_of_a_parent_with_tied_layers(
    aprune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_tied_network.py").write_text(
        "from torch import nn\n"
        "def make(task):\n"
        "    one, other = nn.Linear(7, 7), nn.Linear(7, 7)\n"
        "    other.weight = one.weight\n"
        "    first, last = nn.Linear(64, 7), nn.Linear(7, task.num_classes)\n"
        "    return nn.Sequential(nn.Flatten(), first, one, nn.ReLU(), other, last)\n"
    )
    parent = ("--parent", "their_tied_network:make")
    ended = aprune("find", *parent, "--task", "digits", "--sparsity", 0.5, "--steps", 20)
    ended.assert_refused("2.weight and 4.weight share one tensor")
    ended = aprune(
        *("find", *parent, "--task", "digits", "--classes", "0,1,2,3,4", "--sparsity", 0.5),
        *("--method", "random", "--exclude", "2.*", "--exclude", "4.*"),
    )
    assert ended.status == 0
    (arch,) = (tmp_path / "archs").iterdir()
    ended = aprune("transfer", arch, *parent, *NEW, "--json")
    assert (json.loads(ended.out)["connections"], json.loads(ended.out)["of"]) == (242, 483)
    ended = aprune("transfer", "--dense", *parent, *NEW, "--json")
    assert json.loads(ended.out)["connections"] == 64 * 7 + 7 * 7 + 7 * 5


def test_show(aprune: Callable[..., Any], archs: Path, arch: Path) -> None:
    ended = aprune("show", arch, archs / "mlp-digits-ap-0.5-seed0.arch.safetensors")
    assert (ended.status, ended.err) == (0, "")
    found = Architecture.load(arch)
    for layer in found.layers():
        (line,) = [line for line in ended.out.splitlines() if layer.name in line]
        assert f"{layer.density:.4f}" in line
        assert "█" in line or "▏" in line
        dead = (layer.units_without_input, layer.inputs_without_output)
        assert line.split()[-2:] == [f"{count:,}" for count in dead]
    assert "no layer is empty" in ended.out
    assert "method: ap" in ended.out
    accuracy = found.provenance["test_accuracy"]
    assert f"test_accuracy: {accuracy:.6g}\n" in ended.out
    assert len(str(accuracy)) > len(f"{accuracy:.6g}")
    other = Architecture.load(archs / "mlp-digits-ap-0.5-seed0.arch.safetensors")
    assert f"shares {found.overlap(other).shared:,} connections" in ended.out


def test_show_as_json(aprune: Callable[..., Any], arch: Path) -> None:
    document = json.loads(aprune("show", arch, arch, "--json").out)
    assert document["connections"] == 4979
    assert document["layers"][0]["name"] == "fc1.weight"
    assert sum(layer["kept"] for layer in document["layers"]) == 4979
    assert document["overlap"]["jaccard"] == 1.0
    assert document["provenance"]["parent"] == "mlp"


def test_show_names_empty_layers_and_prints_foreign_text_as_it_is(
    aprune: Callable[..., Any], tmp_path: Path
) -> None:
    masks = {"[red]a": torch.ones(2, 3) > 0, "b\x1b[2J": torch.zeros(3, 2) > 0}
    Architecture(masks, {"note": "[bold]x[/bold]\n\x1b[31m"}).save(tmp_path / "odd")
    ended = aprune("show", tmp_path / "odd")
    assert ended.status == 0
    assert "[red]a" in ended.out
    assert "empty layers: b\\x1b[2J" in ended.out
    assert "note: [bold]x[/bold]\\n\\x1b[31m" in ended.out
    assert "\x1b" not in ended.out


def test_find_on_a_folder_of_images(aprune: Callable[..., Any], tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "[red]owl")):
        for count in range(5):
            path = tmp_path / "my [b]pets" / name / f"{count}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7), (80 * number, 10 * count, 0)).save(path)
    ended = aprune(
        *("find", "--parent", "logistic", "--task", f"folder:{tmp_path / 'my [b]pets'}"),
        *("--classes", "dog,[red]owl", "--size", 8, "--sparsity", 0.5, "--steps", 5),
        *("--out", tmp_path / "out"),
    )
    assert ended.status == 0, ended.err
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == "logistic-my_b_pets-ap-0.5-seed0.arch.safetensors"
    assert str(file) in ended.out
    assert Architecture.load(file).shapes == {"fc.weight": (2, 192)}


@pytest.mark.filterwarnings("default::aprune.errors.ApruneWarning")
def test_files_of_a_folder_that_are_not_read_are_told(
    aprune: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for count in range(5):
            Image.new("RGB", (9, 7), (9 * count, 0, 0)).save(
                tmp_path / "pets" / name / f"{count}.png"
            )
            (tmp_path / "pets" / name / f"{count}.heic").write_text("x")
    (tmp_path / "pets" / "cat" / "\x1b[2J.\x1b[2J").write_text("x")
    task = f"folder:{tmp_path / 'pets'}"
    ended = aprune("data", "check", task)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith("\nNot read: 11 (10 .heic, 1 .\\x1b[2j).\n")
    found = json.loads(aprune("data", "check", task, "--json").out)
    assert found["left_out"] == {".heic": 10, ".\x1b[2j": 1}
    ended = aprune(  # which loads the task several times
        *(
            "compare",
            "--from",
            task,
            "--to",
            task,
            "--size",
            8,
            "--parent",
            "logistic",
            "--seeds",
            1,
        ),
        *("--methods", "random", "--sparsity", 0.5, "--images", 4, "--steps", 2, "--lrs", 0.1),
        *("--out", tmp_path / "out"),
    )
    assert ended.status == 0, ended.err
    told = [line for line in ended.err.splitlines() if "not read" in line]
    assert len(told) == 1
    assert told[0].startswith("aprune: 11 files in ")
