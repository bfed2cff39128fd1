"""Reading options and printing results, by hand-made examples."""

from pathlib import Path
from typing import NoReturn

import pytest

from aprune.cli.option import read_classes, read_list, read_numbers
from aprune.cli.output import draw_bar, one_line, output_folder, path_safe, printable
from aprune.errors import SettingError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("5", 5),
        (" 10 ", 10),
        ("-1", -1),
        ("5,6", ["5", "6"]),
        ("cat, big dog", ["cat", "big dog"]),
        ("cat", ["cat"]),
    ],
)
def test_read_classes(text: str | None, expected: object) -> None:
    assert read_classes(text) == expected


@pytest.mark.parametrize("text", ["", ",", "1,", "1,,2", " , "])
def test_lists_have_no_holes(text: str) -> None:
    with pytest.raises(SettingError, match="--methods"):
        read_list(text, "--methods")
    with pytest.raises(SettingError, match="--sparsity"):
        read_numbers(text, "--sparsity")


@pytest.mark.parametrize(
    ("fraction", "bar"),
    [(0, ""), (1e-9, "▏"), (1 / 8, "█"), (3 / 16, "█▌"), (1, "████████"), (0.999, "████████")],
)
def test_draw_bar(fraction: float, bar: str) -> None:
    assert draw_bar(fraction, 8) == bar


def test_text_of_others_cannot_move_the_cursor() -> None:
    assert printable("é ± \x1b[0m\r\n\x00\x85") == "é ± \\x1b[0m\\r\\n\\x00\\x85"
    assert printable("\udc80") == "\\udc80"
    assert one_line("a\n\n b\t\x07 c") == "a b \\x07 c"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"),
        ("a.b:c", "a.b_c"),
        ("../../etc", "_.._etc"),
        ("..", "_"),
        ("ä/ö", "ä_ö"),
    ],
)
def test_path_safe(text: str, name: str) -> None:
    assert path_safe(text) == name
    assert Path("folder", path_safe(text)).parent == Path("folder")


def test_output_folder_goes_away_with_failed_work(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    def fail(folder: Path, *, after_writing: bool = False) -> NoReturn:
        with output_folder(folder):
            assert folder.is_dir()
            if after_writing:
                (folder / "kept").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "there" / "a" / "b")
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "there" / "a", after_writing=True)
    assert (tmp_path / "there" / "a" / "kept").exists()
    with output_folder(tmp_path / "there" / "b"):
        pass
    assert (tmp_path / "there" / "b").is_dir()
