"""Bad input: one clear line, status 2, nothing half-written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

FIND = {"--parent": "mlp", "--task": "digits", "--sparsity": "0.5", "--steps": "10"}
TRANSFER = ("--task", "digits", "--classes", "5,6", "--steps", 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--parent": "mpl"}, ["'mpl'", "did you mean 'mlp'"]),
        ({"--parent": "nowhere:net"}, ["'nowhere:net'", "could not be imported"]),
        ({"--parent": "vgg19"}, ["vgg19", "8×8"]),
        ({"--task": "digit"}, ["'digit'", "did you mean digits"]),
        ({"--task": "folder:nowhere"}, ["nowhere", "does not exist"]),
        ({"--method": "magic"}, ["'magic'", "ap, random, erk"]),
        ({"--sparsity": "1.2"}, ["1.2", "below 1"]),
        ({"--sparsity": "1.0"}, ["1.0", "below 1"]),
        ({"--sparsity": "-1"}, ["-1", "at least 0"]),
        ({"--sparsity": "nan"}, ["nan"]),
        ({"--sparsity": "0.5,much"}, ["'0.5,much'", "--sparsity"]),
        ({"--sparsity": "0.999999"}, ["leaves nothing"]),
        ({"--images": "99999"}, ["99999", "at most"]),
        ({"--images": "3"}, ["3", "at least 10"]),
        ({"--images": "many"}, ["--images"]),
        ({"--classes": "11"}, ["11 classes", "at most 10"]),
        ({"--classes": "0,99"}, ["'99'"]),
        ({"--classes": "0,,1"}, ["'0,,1'", "--classes"]),
        ({"--classes": "cat"}, ["'cat'"]),
        ({"--size": "0"}, ["size"]),
        ({"--seed": "-1"}, ["-1", "--seed"]),
        ({"--steps": "0"}, ["steps is 0"]),
        ({"--batch": "-3"}, ["batch is -3"]),
        ({"--lr": "0"}, ["learning rate is 0"]),
        ({"--lr": "1e30"}, ["not finite"]),
        ({"--include": "nothing"}, ["no connections", "nothing"]),
        ({"--exclude": "*"}, ["no connections are left: * in exclude", "fc1.weight"]),
        ({"--parent": "mynet.py:build"}, ["'mynet.py:build'", "such as mynet:build"]),
        ({"--device": "abacus"}, ["'abacus'", "auto, cpu or cuda"]),
        ({"--set": "rounds=3"}, ["ap has no setting 'rounds'", "t_l, t_s"]),
        ({"--set": "steps=3"}, ["ap has no setting 'steps'"]),
        ({"--set": "t_l"}, ["'t_l'", "NAME=VALUE"]),
        ({"--method": "erk", "--set": "t_l=9"}, ["erk has no setting", "none at all"]),
        ({"--method": "imp", "--set": "rounds=many"}, ["'many'", "rounds", "a whole number"]),
        ({"--method": "imp", "--set": "rounds=0"}, ["rounds is 0"]),
        ({"--method": "random", "--set": "spread=thin"}, ["'thin'", "layer or global"]),
        ({"--method": "imp", "--set": "rewind=10"}, ["rewind", "2 steps"]),
        ({"--set": "gamma=some"}, ["'some'", "auto"]),
        ({"--set": "w_schedule=slow"}, ["'slow'", "constant, hold", "one_cycle or warm_up"]),
        ({"--set": "gamma=-1"}, ["gamma is -1"]),
        ({"--set": "t-s=0"}, ["t_s is 0"]),
        ({"--set": "dense_start=1"}, ["dense_start is 1"]),
        ({"--frobnicate": "1"}, ["--frobnicate", "aprune find --help"]),
    ],
    ids=lambda value: (
        " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_find_refuses(
    aprune: Callable[..., Any],
    tmp_path: Path,
    list_tree: Callable[[], Any],
    changes: dict[str, str | None],
    words: list[str],
) -> None:
    options = FIND | changes
    given = [
        w for key, value in options.items() for w in ([key] if value is None else [key, value])
    ]
    aprune("find", *given, "--out", tmp_path / "new" / "archs").assert_refused(*words)
    assert list_tree() == {}


def test_find_needs_its_options(aprune: Callable[..., Any]) -> None:
    aprune("find", "--parent", "mlp").assert_refused("--task", "aprune find --help")


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_output_that_cannot_be_written(
    aprune: Callable[..., Any],
    arch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    list_tree: Callable[[], Any],
    place: str,
) -> None:
    (tmp_path / "file").write_text("in the way")
    before, out = list_tree(), tmp_path / place
    aprune("reproduce", "figure1", "--out", out).assert_refused("cannot write", str(out))
    # before the search, not after an hour of it
    monkeypatch.setattr("aprune.tasks.load_task", lambda *_, **__: pytest.fail("too late"))
    find = [word for pair in FIND.items() for word in pair]
    aprune("find", *find, "--out", out).assert_refused("cannot write", str(out))
    model = tmp_path / "file" / place / "x.model.safetensors"
    aprune("transfer", arch, *TRANSFER, "--out", model).assert_refused(
        "cannot write", str(model.parent)
    )
    assert list_tree() == before


def test_output_that_is_a_folder(
    aprune: Callable[..., Any], arch: Path, tmp_path: Path, list_tree: Callable[[], Any]
) -> None:
    (tmp_path / "archs" / "mlp-digits-ap-0.5-seed0.arch.safetensors").mkdir(parents=True)
    before = list_tree()
    find = [word for pair in FIND.items() for word in pair]
    aprune("find", *find, "--out", tmp_path / "archs").assert_refused("it is a folder")
    aprune("transfer", arch, *TRANSFER, "--out", tmp_path).assert_refused("it is a folder")
    assert list_tree() == before


def test_no_data(aprune: Callable[..., Any], arch: Path, tmp_path: Path, list_tree: Any) -> None:
    for task in ("mnist", "cifar10", "cifar100"):
        find = [word for pair in (FIND | {"--task": task}).items() for word in pair]
        aprune("find", *find, "--out", tmp_path / "a").assert_refused(task, "set APRUNE_DATA")
        aprune("transfer", arch, "--task", task).assert_refused(task, "set APRUNE_DATA")
        aprune("data", "fetch", task).assert_refused(task, "set APRUNE_DATA")
        aprune("data", "check", task).assert_refused(task, "set APRUNE_DATA")
    figure = ("reproduce", "figure1", "--data", "mnist", "--out", tmp_path / "b")
    aprune(*figure).assert_refused("mnist", "set APRUNE_DATA")
    assert list_tree() == {}


def test_unreadable_image(aprune: Callable[..., Any], tmp_path: Path, list_tree: Any) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for count in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / "pets" / name / f"{count}.png")
    bad = tmp_path / "pets" / "dog" / "2.png"
    bad.write_bytes(bad.read_bytes()[:40])
    before = list_tree()
    find = [
        word for pair in (FIND | {"--task": f"folder:{tmp_path / 'pets'}"}).items() for word in pair
    ]
    aprune("find", *find, "--out", tmp_path / "out").assert_refused(str(bad))
    aprune("data", "check", f"folder:{tmp_path / 'pets'}").assert_refused(str(bad))
    assert list_tree() == before
    worse = tmp_path / "pets" / "cat" / "1.png"
    worse.write_bytes(b"no image")
    check = ("data", "check", f"folder:{tmp_path / 'pets'}")
    aprune(*check).assert_refused("2 images cannot be read", str(bad), str(worse))


def test_a_folder_without_its_prefix(
    aprune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pics/ok").mkdir(parents=True)
    aprune("data", "check", "pics/ok").assert_refused("'pics/ok'", "did you mean folder:pics/ok?")
    find = [word for pair in (FIND | {"--task": "pics/ok"}).items() for word in pair]
    aprune("find", *find).assert_refused("'pics/ok'", "did you mean folder:pics/ok?")


def test_damaged_files(aprune: Callable[..., Any], arch: Path, tmp_path: Path) -> None:
    whole = arch.read_bytes()
    middle = len(whole) - 1000
    flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
    damaged = {"cut": whole[:-10], "empty": b"", "noise": b"\x93no\n" * 99, "flipped": flipped}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        aprune("show", tmp_path / name).assert_refused(str(tmp_path / name))
        aprune("transfer", tmp_path / name, *TRANSFER).assert_refused(str(tmp_path / name))
        dense = ("transfer", "--dense", "--parent", "mlp", *TRANSFER)
        aprune(*dense, "--start-from", tmp_path / name).assert_refused(str(tmp_path / name))
    aprune("show", tmp_path).assert_refused("it is a folder; expected a file")
    start = aprune(*dense, "--start-from", tmp_path / "nowhere")
    start.assert_refused("No such file", "expected a model that transfer, or find with --weights")
    aprune("show", tmp_path / "nowhere").assert_refused("no such file")
    aprune("show", arch, tmp_path / "nowhere").assert_refused("no such file")


def test_architecture_of_another_parent(
    aprune: Callable[..., Any], arch: Path, archs: Path, tmp_path: Path
) -> None:
    aprune("transfer", arch, *TRANSFER, "--parent", "conv").assert_refused("another parent")
    find = [
        word
        for pair in (FIND | {"--parent": "conv", "--method": "random"}).items()
        for word in pair
    ]
    assert aprune("find", *find, "--out", tmp_path).status == 0
    other = tmp_path / "conv-digits-random-0.5-seed0.arch.safetensors"
    aprune("show", arch, other).assert_refused("different parents")
    weights = archs / "mlp-digits-ap-0.9-seed0.model.safetensors"
    aprune("transfer", other, *TRANSFER, "--start-from", weights).assert_refused("another network")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--images", "9999"), ["9999", "at most"]),
        (("--init", "zero"), ["'zero'", "he_fan_in"]),
        (("--mismatch", "sparse"), ["'sparse'", "random, dense"]),
        (("--optimiser", "lion"), ["'lion'", "sgd or adam"]),
        (("--optimiser", "adam"), ["--lr"]),
        (("--epsilon", "0.1"), ["--epsilon", "normal"]),
        (("--init", "normal", "--epsilon", "-1"), ["-1", "above 0"]),
        (("--dense", "--parent", "mlp"), ["FILE", "--dense"]),
        (("--parent", "mpl"), ["'mpl'"]),
        (("--lr", "1e30"), ["nan", "smaller learning rate"]),
    ],
    ids=str,
)
def test_transfer_refuses(
    aprune: Callable[..., Any],
    arch: Path,
    tmp_path: Path,
    list_tree: Any,
    options: tuple[str, ...],
    words: list[str],
) -> None:
    out = ("--out", tmp_path / "new" / "x.model.safetensors")
    aprune("transfer", arch, *TRANSFER, *options, *out).assert_refused(*words)
    assert list_tree() == {}


def test_transfer_does_not_replace_its_own_architecture(
    aprune: Callable[..., Any], arch: Path, tmp_path: Path
) -> None:
    before, link = arch.read_bytes(), tmp_path / "link"
    link.symlink_to(arch)
    for out in (arch, link):
        aprune("transfer", arch, *TRANSFER, "--out", out).assert_refused("architecture itself")
    assert arch.read_bytes() == before


def test_transfer_without_an_architecture(aprune: Callable[..., Any], tmp_path: Path) -> None:
    aprune("transfer", *TRANSFER).assert_refused("FILE", "--dense")
    aprune("transfer", "--dense", *TRANSFER).assert_refused("--parent")


def test_figure1_refuses(aprune: Callable[..., Any], tmp_path: Path, list_tree: Any) -> None:
    figure = ("reproduce", "figure1", "--out", tmp_path / "f")
    aprune(*figure, "--data", "cifar10").assert_refused("'cifar10'", "digits or mnist")
    aprune(*figure, "--seeds", 0).assert_refused("0 seeds")
    aprune("reproduce", "figure99").assert_refused("figure99")
    aprune("reproduce").assert_refused("aprune reproduce --help")
    assert list_tree() == {}


def test_data_refuses(aprune: Callable[..., Any]) -> None:
    aprune("data", "fetch", "imagenet").assert_refused("'imagenet'", "digits")
    aprune("data", "check", "folder:").assert_refused("folder:PATH")
    aprune("data", "check", "folder:nowhere").assert_refused(
        "nowhere does not exist; give a folder"
    )
    aprune("data", "burn").assert_refused("burn")
