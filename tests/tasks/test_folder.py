import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aprune.errors import ApruneWarning, TaskError
from aprune.tasks import Augment, check, load_task
from aprune.tasks.layout import list_images, name_left_out

RED, BLUE = (200, 10, 20), (5, 15, 250)


@pytest.fixture
def pictures(write_folder: Callable[..., Path]) -> Path:
    files = {f"reds/{i}.png": (40 + i, 50, RED) for i in range(10)}
    files |= {f"blues/{i}.jpg": (64, 33 + i, BLUE) for i in range(7)}
    return write_folder(files)


def test_classes_sizes_and_split(pictures: Path) -> None:
    task = load_task(f"folder:{pictures}")
    assert task.name == "pictures"
    assert task.classes == ("blues", "reds")
    assert task.shape == (3, 32, 32)
    assert task.augment == Augment(flip=True, shift=4)
    assert task.test_labels.bincount().tolist() == [1, 2]
    assert task.train_labels.bincount().tolist() == [6, 8]
    reds = task.train_images[task.train_labels == 1]
    assert reds.permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0).tolist() == [list(RED)]


def test_the_split_does_not_depend_on_the_seed_but_on_the_names(pictures: Path) -> None:
    one, two = (load_task(f"folder:{pictures}", seed=seed) for seed in (0, 1))
    assert one.provenance["checksum"] == two.provenance["checksum"]
    test = list_images(pictures).test
    before = {file.name for file in test["reds"]}
    (pictures / "reds").rename(pictures / "crimson")
    test = list_images(pictures).test
    assert {file.name for file in test["crimson"]} == before


def test_the_centre_is_cut_out(write_folder: Callable[..., Path]) -> None:
    root = write_folder({f"{c}/{i}.png": (8, 8, RED) for c in "ab" for i in range(2)})
    # Three squares side by side: only the middle one is left.
    stripes = np.zeros((16, 48, 3), np.uint8)
    stripes[:, 16:32] = 90
    for name in ("0.png", "1.png"):
        Image.fromarray(stripes).save(root / "a" / name)
        Image.fromarray(stripes.transpose(1, 0, 2).copy()).save(root / "b" / name)
    assert load_task(f"folder:{root}", size=16).train_images.unique().tolist() == [90]


def test_train_and_test_folders_are_honoured(write_folder: Callable[..., Path]) -> None:
    files = {f"train/{c}/{i}.png": (8, 8, RED) for c in "ab" for i in range(3)}
    files |= {f"test/{c}/x{i}.png": (8, 8, BLUE) for c in "ab" for i in range(2)}
    task = load_task(f"folder:{write_folder(files)}", size=8)
    assert task.classes == ("a", "b")
    assert task.train_images[0, :, 0, 0].tolist() == list(RED)
    assert task.test_images[:, :, 0, 0].tolist() == [list(BLUE)] * 4


def test_capitals_do_not_matter_to_train_and_test(write_folder: Callable[..., Path]) -> None:
    files = {f"Train/{c}/{i}.png": (8, 8, RED) for c in "ab" for i in range(3)}
    files |= {f"TEST/{c}/x{i}.png": (8, 8, BLUE) for c in "ab" for i in range(2)}
    task = load_task(f"folder:{write_folder(files)}", size=8)
    assert task.classes == ("a", "b")
    assert task.train_images[:, :, 0, 0].tolist() == [list(RED)] * 6
    assert task.test_images[:, :, 0, 0].tolist() == [list(BLUE)] * 4


def test_what_is_beside_train_and_test_is_told(
    write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    files = {f"{p}/{c}/{i}.png": (8, 8, RED) for p in ("train", "test") for c in "ab" for i in "12"}
    files |= {f"val/{c}/{i}.png": (8, 8, BLUE) for c in "ab" for i in range(3)}
    files |= {"more/1.png": (8, 8, RED), "1.png": (8, 8, RED), "train/1.png": (8, 8, RED)}
    root = write_folder(files)
    (root / "val" / "a" / "1.heic").write_text("x")
    (root / "notes").mkdir()
    (root / "notes" / "1.txt").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (root / "Valid").symlink_to(tmp_path / "elsewhere")
    told = (
        r"11 files in .* not read: 7 in val/, 2 beside the class folders, 1 in Valid/, 1 in more/;"
    )
    with pytest.warns(ApruneWarning, match=told):
        assert len(load_task(f"folder:{root}").train_labels) == 4
    assert check(f"folder:{root}").left_out["in val/"] == 7


@pytest.mark.parametrize("names", ["car train", "valid invalid"])
def test_names_of_parts_may_be_classes(write_folder: Callable[..., Path], names: str) -> None:
    files = {f"{c}/{i}.png": (8, 8, RED) for c in names.split() for i in range(2)}
    files |= {f"{c}/old/3.png": (8, 8, RED) for c in names.split()}
    assert load_task(f"folder:{write_folder(files)}").classes == tuple(sorted(names.split()))


def test_classes_and_images_can_be_chosen(pictures: Path) -> None:
    task = load_task(f"folder:{pictures}", classes=["reds", "blues"], images=5)
    assert task.classes == ("reds", "blues")
    assert task.provenance["classes"] == [1, 0]
    with pytest.raises(TaskError, match=r"has 14 of these 2 classes, 1[23] when balanced"):
        load_task(f"folder:{pictures}", images=100)


def test_what_is_hidden_or_no_class_is_passed_over(pictures: Path) -> None:
    before = load_task(f"folder:{pictures}").provenance["checksum"]
    (pictures / "notes.txt").write_text("x")
    (pictures / "reds" / ".hidden.png").write_text("x")
    (pictures / ".git").mkdir()
    (pictures / "reds" / ".thumbnails").mkdir()
    (pictures / "reds" / ".thumbnails" / "0.png").write_text("x")
    (pictures / "reds" / "folder.png").mkdir()
    assert load_task(f"folder:{pictures}").provenance["checksum"] == before
    assert check(f"folder:{pictures}").left_out == {}


def test_files_that_are_not_read_are_counted_and_told(pictures: Path, tmp_path: Path) -> None:
    before = load_task(f"folder:{pictures}").provenance["checksum"]
    (pictures / "reds" / "old").mkdir()
    for number in range(3):
        (pictures / "reds" / f"{number}.heic").write_text("x")
        (pictures / "reds" / "old" / f"{number}.HEIC").write_text("x")
    (pictures / "reds" / "0").write_text("x")
    (pictures / "reds" / "x.a\nb").write_text("x")
    (pictures / "blues" / "more").symlink_to(tmp_path)
    Image.new("RGB", (4, 4)).save(pictures / "lost.png")
    told = (
        r"10 files in .*pictures not read: 6 \.heic, 1 \.a\\nb, 1 beside the class folders,"
        r" 1 leading to no file, 1 without an ending; only \.bmp,"
    )
    for _ in range(2):  # out of the cache too
        with pytest.warns(ApruneWarning, match=told):
            task = load_task(f"folder:{pictures}")
        assert task.provenance["checksum"] == before
    found = check(f"folder:{pictures}")
    assert found.left_out == {
        ".heic": 6,
        ".a\nb": 1,
        "without an ending": 1,
        "leading to no file": 1,
        "beside the class folders": 1,
    }
    assert found.checksum == before


def test_a_message_names_few_kinds_of_files() -> None:
    told = name_left_out({f".{letter}": 1_000 for letter in "abcdefgh"})
    assert told == "1,000 .a, 1,000 .b, 1,000 .c, 1,000 .d, 1,000 .e, 3,000 more"


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n", None])
def test_an_unreadable_image_is_named(pictures: Path, content: bytes | None) -> None:
    bad = pictures / "reds" / "broken.png"
    whole = (pictures / "reds" / "0.png").read_bytes()
    bad.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(TaskError, match=r"reds/broken\.png: the image cannot be read") as caught:
        load_task(f"folder:{pictures}")
    assert "\n" not in str(caught.value)


def test_a_check_names_all_unreadable_images(pictures: Path) -> None:
    bad = [pictures / "blues" / "3.jpg", pictures / "reds" / "0.png", pictures / "reds" / "8.png"]
    for file in bad:
        file.write_bytes(b"no image")
    test = list_images(pictures).test  # one of them is for testing, so both parts are looked at
    assert {file in test["blues"] + test["reds"] for file in bad} == {True, False}
    with pytest.raises(TaskError, match=r"^3 images cannot be read: .*replace or remove") as caught:
        check(f"folder:{pictures}")
    assert all(str(file) in str(caught.value) for file in bad)
    assert str(caught.value).isprintable()
    for number in range(40):
        (pictures / "reds" / f"bad{number}.png").write_bytes(b"no image")
    with pytest.raises(TaskError, match=r"^43 images .* and 23 more \(the first:") as caught:
        check(f"folder:{pictures}")
    assert str(caught.value).count("g, ") == 19


def test_modes_of_all_kinds_become_colour(write_folder: Callable[..., Path]) -> None:
    root = write_folder({f"{c}/{i}.png": (8, 8, RED) for c in "ab" for i in range(2)})
    grey = Image.new("L", (8, 8), 77)
    for name in ("0.png", "1.png"):
        grey.save(root / "a" / name)
    sixteen = Image.fromarray(np.full((8, 8), 77 * 256 + 13, np.uint16))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([77, 77, 77] * 256)
    sixteen.save(root / "b" / "0.png")
    palette.save(root / "b" / "1.png", transparency=bytes([128] * 256))
    task = load_task(f"folder:{root}", size=8)
    assert torch.cat([task.train_images, task.test_images]).unique().tolist() == [77]


def test_photographs_are_turned_upright(write_folder: Callable[..., Path]) -> None:
    root = write_folder({f"{c}/{i}.png": (8, 8, RED) for c in "ab" for i in range(2)})
    lying = np.zeros((8, 8, 3), np.uint8)
    lying[:, :4] = 200  # the left half is bright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by a quarter: the bright half is then on top
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        Image.fromarray(lying).save(root / name, exif=exif)
    image = load_task(f"folder:{root}", size=8).train_images[0, 0]
    assert image[:4].unique().tolist() == [200]
    assert image[4:].unique().tolist() == [0]


def test_a_large_photograph_is_read_well(write_folder: Callable[..., Path]) -> None:
    root = write_folder({f"{c}/{i}.jpg": (1600, 1200, BLUE) for c in "ab" for i in range(2)})
    image = load_task(f"folder:{root}", size=16).train_images[0].float()
    assert (image - torch.tensor(BLUE).reshape(3, 1, 1)).abs().max() <= 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "at least 2 sub-folders.*found none"),
        (["only/1.png", "only/2.png"], "found only only"),
        (["a/1.png", "a/2.png", "b/1.png"], "pictures/b has 1 image; a class needs at least 2"),
        (["a/1.png", "a/2.png", "b/notes.txt"], "pictures/b has no images"),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/c/1.png"], "class b is only in"),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png"], "test needs at least 2 sub-folders"),
        (
            ["Train/a/1.png", "Train/b/1.png", "val/a/1.png", "val/b/1.png"],
            "has Train and val, but no test beside Train: rename val to test",
        ),
        (["train/1.png", "train/2.png", "valid/1.png", "valid/2.png"], "rename valid to test"),
        (
            ["train/a/1.png", "VAL/a/1.png", "validation/a/1.png"],
            "rename VAL or validation to test.*; or put the class folders directly into",
        ),
        (["train/a/1.png", "train/b/1.png"], "has train, but no test beside train: add it"),
        (["train/1.png", "train/2.png"], "has train, but no test beside train: add it"),
        (
            ["train/a/1.png", "more/1.png", "more/2.png"],
            "no test beside train: .*; if train is a class, put images into it",
        ),
        (["a/1.png", "b/1.png", "Test/a/1.png", "Test/b/1.png"], "has Test, which cannot be told"),
        (["training/a/1.png", "testing/a/1.png"], "expected one train and one test: rename them"),
        (["train/a/1.png", "Train/a/1.png", "test/a/1.png"], "expected one train and one test"),
    ],
)
def test_folders_that_are_no_task(tmp_path: Path, files: list[str], message: str) -> None:
    root = tmp_path / "pictures"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("png"):
            Image.new("RGB", (4, 4)).save(root / name)
        else:
            (root / name).write_text("x")
    with pytest.raises(TaskError, match=message):
        load_task(f"folder:{root}")


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="missing does not exist"):
        load_task(f"folder:{tmp_path / 'missing'}")
    (tmp_path / "file").write_text("x")
    with pytest.raises(TaskError, match="file is not a folder"):
        load_task(f"folder:{tmp_path / 'file'}")
    with pytest.raises(TaskError, match="without a path"):
        load_task("folder:")
    with pytest.raises(TaskError, match="no home folder"):
        load_task("folder:~nobody-of-this-name/pictures")


def blank(width: int, height: int, rows: bytes) -> bytes:
    """A PNG of one bit a pixel that says it is so large."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


@pytest.mark.parametrize(
    "content",
    [
        blank(50_000, 50_000, b""),
        blank(2**31 - 1, 2**31 - 1, b""),
        blank(9_000, 7_200, b""),  # above 64 million
        blank(8_000, 7_000, bytes(1001 * 7_000)),  # all of it is there, in 7 kB
    ],
)
def test_an_image_of_more_pixels_than_its_bytes_can_mean(pictures: Path, content: bytes) -> None:
    (pictures / "reds" / "bomb.png").write_bytes(content)
    with pytest.raises(
        TaskError, match=r"bomb\.png: the image cannot be read \(.*pixels"
    ) as caught:
        load_task(f"folder:{pictures}")
    assert str(caught.value).isprintable()


def test_a_large_blank_image_may_be_as_small_as_png_makes_it(pictures: Path) -> None:
    (pictures / "reds" / "white.png").write_bytes(blank(1_000, 1_000, bytes(126 * 1_000)))
    load_task(f"folder:{pictures}")
    Image.new("L", (5_000, 5_000)).save(pictures / "reds" / "black.png")
    load_task(f"folder:{pictures}")


def test_names_that_are_no_text(pictures: Path) -> None:
    raw = os.fsencode(pictures)
    os.rename(raw + b"/reds/0.png", raw + b"/reds/\xff\n.png")  # noqa: PTH104 - bytes
    os.rename(raw + b"/blues", raw + b"/\xfe\n")  # noqa: PTH104
    task = load_task(f"folder:{pictures}")
    assert task.classes == ("reds", "\\xfe\n")
    (pictures / "reds" / "a\nb.png").write_bytes(b"no image")
    with pytest.raises(TaskError, match=r"a\\nb\.png: the image cannot be read") as caught:
        load_task(f"folder:{pictures}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["train", "test", "greens", "val"])
def test_a_folder_that_is_a_link_is_refused(pictures: Path, tmp_path: Path, name: str) -> None:
    (pictures / name).symlink_to(tmp_path)
    with pytest.raises(TaskError, match=f"{name} is a link; expected a folder"):
        load_task(f"folder:{pictures}")


def test_images_may_be_links_but_pipes_are_passed_over(pictures: Path, tmp_path: Path) -> None:
    before = load_task(f"folder:{pictures}").provenance["checksum"]
    (pictures / "reds" / "0.png").rename(tmp_path / "blob")
    (pictures / "reds" / "0.png").symlink_to(tmp_path / "blob")
    os.mkfifo(pictures / "reds" / "pipe.png")
    (pictures / "reds" / "nowhere.png").symlink_to("nowhere.png")
    with pytest.warns(ApruneWarning, match="not read: 2 leading to no file"):
        assert load_task(f"folder:{pictures}").provenance["checksum"] == before
