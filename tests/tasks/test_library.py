import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aprune.errors import TaskError
from aprune.tasks import check, describe_data, fetch, load_task, task_names
from aprune.tasks.library import KNOWN

Made = tuple[Path, dict[str, np.ndarray]]
REAL = os.environ.get("APRUNE_DATA")  # read before the fixtures take it away


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A Hub that answers with `tmp_path / "snapshot"` and keeps the questions."""
    asked: list[dict[str, Any]] = []

    def download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        snapshot = tmp_path / "snapshot"
        if options["local_files_only"]:
            raise FileNotFoundError("not in the cache")
        snapshot.mkdir(exist_ok=True)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: None)
    return asked


def test_no_data_and_no_network_says_what_to_do() -> None:
    with pytest.raises(TaskError) as caught:
        load_task("cifar10")
    message = str(caught.value)
    assert "APRUNE_DATA is not set" in message
    assert "uoft-cs/cifar10: no network in tests)" in message
    assert "cifar10/plain_text/train-*.parquet" in message
    assert "connect to the network" in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_data_folder_without_the_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APRUNE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(TaskError, match="elsewhere has no mnist/mnist"):
        load_task("mnist")


def test_the_hub_is_asked_when_the_data_folder_lacks_the_set(
    made: Made, hub: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = made
    expected = load_task("cifar100").provenance
    (tmp_path / "snapshot").mkdir()
    folder.rename(tmp_path / "snapshot" / "cifar100")
    assert load_task("cifar100").provenance == expected
    assert hub[-1]["repository"] == "uoft-cs/cifar100"
    assert hub[-1]["repo_type"] == "dataset"
    assert hub[-1]["allow_patterns"] == ["cifar100/*.parquet"]
    assert [question["local_files_only"] for question in hub[-2:]] == [True, False]
    assert fetch("cifar100") == str(tmp_path / "snapshot" / "cifar100")


def test_a_repository_without_the_files(hub: list[dict[str, Any]]) -> None:
    with pytest.raises(TaskError, match="ylecun/mnist: the files are not there"):
        load_task("mnist")


def test_half_a_data_set_is_an_error(made: Made) -> None:
    folder, _ = made
    (folder / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(TaskError, match=r"cifar100 has no test-\*.parquet; get cifar100 again"):
        load_task("cifar100")
    assert [d.problem for d in describe_data() if d.name == "cifar100" and d.problem]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "there is no task 'cifar'; did you mean cifar"),
        ("Digits", "did you mean digits"),
        ("imagenet", "choose one of digits, mnist, cifar10, cifar100, folder:PATH"),
        ("", "choose one of"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    for call in (load_task, fetch, check):
        with pytest.raises(TaskError, match=message):
            call(name)


def test_the_name_of_a_folder_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pics/ok", "cifar1"):
        (tmp_path / name).mkdir(parents=True)
    for call in (load_task, fetch, check):
        with pytest.raises(TaskError, match=r"no task 'pics/ok'; did you mean folder:pics/ok\?$"):
            call("pics/ok")
        with pytest.raises(TaskError, match=r"did you mean cifar10+ or folder:cifar1\?$"):
            call("cifar1")
        for odd in ("x" * 5_000, "a\0b", "~nobody-of-this-name/x"):
            with pytest.raises(TaskError, match="choose one of"):
                call(odd)


def test_names_lead_to_tasks() -> None:
    assert task_names() == ("digits", *KNOWN, "folder:PATH")


def test_nothing_is_here_but_the_digits() -> None:
    digits, *others = describe_data()
    assert (digits.where, digits.train, digits.test) == ("embedded", 1198, 599)
    assert [(d.name, d.where, d.train) for d in others] == [
        (name, "not here", None) for name in KNOWN
    ]


def test_describing_reads_headers_and_checking_everything(made: Made) -> None:
    folder, _ = made
    described = next(d for d in describe_data() if d.name == "cifar100")
    assert described.where == str(folder)
    assert (described.train, described.test, described.classes) == (12, 6, 2)
    assert described.shape == (3, 4, 4)
    checked = check("cifar100")
    assert checked.where == str(folder)
    assert checked.train == {"ant": 6, "cow": 6}
    assert checked.test == {"ant": 3, "cow": 3}
    assert checked.checksum == load_task("cifar100").provenance["checksum"]


def test_checking_does_not_trust_the_cache(
    made: Made, sealed: Path, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, _ = made
    load_task("cifar100")
    path = folder / "test-00000-of-00001.parquet"
    status = path.stat()
    content = bytearray(path.read_bytes())
    place = content.index(b"IDAT")
    content[place : place + 12] = b"x" * 12
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(TaskError, match=r"test-00000-of-00001\.parquet, row 0"):
        check("cifar100")


def test_a_check_names_all_unreadable_rows(
    made: Made, encode: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    folder, pixels = made
    blobs = [encode(image) for image in pixels["test"]]
    blobs[2] = blobs[4] = b"no image"
    write_shard(folder / "test-00000-of-00001.parquet", blobs, [0, 0, 2, 2, 0, 2])
    rows = r"2 images cannot be read: .*00001\.parquet, row 2, .*00001\.parquet, row 4 \(the first"
    with pytest.raises(TaskError, match=rows):
        check("cifar100")
    blobs[4] = blobs[3]
    write_shard(folder / "test-00000-of-00001.parquet", blobs, [0, 0, 2, 2, 0, 2])
    with pytest.raises(TaskError, match=r"row 2: the image cannot be read"):
        check("cifar100")


def test_damaged_files_are_described_as_such(made: Made) -> None:
    folder, _ = made
    (folder / "test-00000-of-00001.parquet").write_bytes(b"rubbish")
    described = next(d for d in describe_data() if d.name == "cifar100")
    assert described.where == str(folder)
    assert "cannot be read as parquet" in (described.problem or "")


def test_folders_can_be_checked_but_not_fetched(write_folder: Callable[..., Path]) -> None:
    root = write_folder({f"{c}/{i}.png": (9, 9, (i, 0, 0)) for c in "ab" for i in range(5)})
    assert check(f"folder:{root}").test == {"a": 1, "b": 1}
    assert fetch(f"folder:{root}") == str(root)
    with pytest.raises(TaskError, match="cannot be fetched"):
        fetch(f"folder:{root}/missing")
    with pytest.raises(TaskError, match="missing does not exist; give a folder"):
        check(f"folder:{root}/missing")


def test_a_class_list_may_name_more_than_there_is(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real CIFAR-100 files where they are at hand, otherwise on those made here."""
    sizes = {"cifar100": (12, 6, 2, (3, 4, 4))}
    if REAL and (Path(REAL) / "cifar100").is_dir():
        monkeypatch.setenv("APRUNE_DATA", REAL)
        sizes = {"cifar100": (25_000, 5_000, 50, (3, 32, 32))}
    described = next(d for d in describe_data() if d.name == "cifar100")
    found = (described.train, described.test, described.classes, described.shape)
    # A full download holds all hundred classes.
    assert found in (sizes["cifar100"], (50_000, 10_000, 100, (3, 32, 32)))
