"""The look of the figures: same bytes every time, and nothing of the user's changed."""

import itertools
from pathlib import Path

import matplotlib
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from aprune.errors import FileError
from aprune.experiments.style import (
    COLOURS,
    DASHES,
    make_figure,
    make_logarithmic,
    save,
    styled,
)
from aprune.methods import METHODS


def example() -> Figure:
    with styled():
        figure = make_figure(height=2.0)
        axes = figure.add_subplot()
        axes.plot([1, 10, 2000], [0.3, 1, 2], color=COLOURS["ap"], label="$t_s$")
        make_logarithmic(axes)
        axes.legend()
    return figure


def test_same_figure_gives_the_same_bytes_without_a_date(tmp_path: Path) -> None:
    first = save(example(), tmp_path / "a-0.95")
    second = save(example(), tmp_path / "b-0.95")
    assert [path.name for path in first] == ["a-0.95.png", "a-0.95.pdf"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"CreationDate" not in first[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a-0.95.pdf",
        "a-0.95.png",
        "b-0.95.pdf",
        "b-0.95.png",
    ]


def test_png_has_200_dots_to_the_inch(tmp_path: Path) -> None:
    png, _ = save(example(), tmp_path / "figure")
    with Image.open(png) as image:
        assert image.size == (700, 400)


def test_the_users_matplotlib_stays_as_it_was(tmp_path: Path) -> None:
    with matplotlib.rc_context({"font.size": 23.0, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        figure = example()
        save(figure, tmp_path / "figure")
        assert dict(matplotlib.rcParams) == before
    assert figure.canvas.manager is None  # pyplot would have given it one


def test_axes_show_plain_numbers() -> None:
    figure = example()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    across = [label.get_text() for label in axes.get_xticklabels()]
    upwards = [label.get_text() for label in axes.get_yticklabels()]
    assert {"1", "10", "100", "1,000"} <= set(across)
    assert {"0.3", "0.5", "1", "2"} <= set(upwards)


def test_every_method_has_colour_and_dashes_of_its_own() -> None:
    assert set(COLOURS) == {*METHODS, "dense"}
    assert list(COLOURS) == list(DASHES)
    assert len(set(COLOURS.values())) == len(set(DASHES.values())) == len(COLOURS)
    with pytest.raises(TypeError):
        COLOURS["ap"] = "red"  # type: ignore[index]


def test_the_main_methods_differ_in_grey_print() -> None:
    weights = (0.299, 0.587, 0.114)
    grey = sorted(
        sum(part * weight for part, weight in zip(to_rgb(COLOURS[name]), weights, strict=True))
        for name in ("ap", "random", "imp")
    )
    assert min(high - low for low, high in itertools.pairwise(grey)) > 0.1


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError):
        save(example(), tmp_path / "file" / "figure")
