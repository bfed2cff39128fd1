"""`aprune reproduce`: parts of the paper in seconds, resumed, refused and drawn again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--scale", "small", "--parent", "logistic", "--budget", "quick", "--seeds", 1)
SMALL += ("--sparsity", "0.5", "--device", "cpu")


def test_table1_is_made_kept_and_drawn_again(aprune: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "paper"
    first = aprune("reproduce", "table1", *SMALL, "--out", out)
    assert first.status == 0, first.err
    assert "undecided" in first.out
    runs = {path: path.stat().st_mtime_ns for path in out.glob("runs/*.json")}
    assert runs
    again = aprune("reproduce", "table1", *SMALL, "--out", out, "--json")
    told = json.loads(again.out)
    assert told["complete"] is True
    assert told["rows"] == 6  # AP and IMP as found and reshuffled, random, dense
    assert [verdict["number"] for verdict in told["verdicts"]] == [2, 3, 4, 5]
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*.json")} == runs
    drawn = aprune("reproduce", "figures", "--from", out, "--out", tmp_path / "drawn", "--json")
    files = {Path(path).name for path in json.loads(drawn.out)["files"]}
    assert files >= {"figure5.png", "table1.png", "claims.md"}


def test_all_of_it_with_the_first_claim(aprune: Callable[..., Any], tmp_path: Path) -> None:
    done = aprune("reproduce", "all", *SMALL, "--out", tmp_path / "paper", "--json")
    told = json.loads(done.out)
    assert [verdict["number"] for verdict in told["verdicts"]] == [1, 2, 3, 4, 5]
    assert told["rows"] == 6 * 4 + 2
    first = tmp_path / "paper/figure1-digits.parquet"
    before = first.stat().st_mtime_ns
    aprune("reproduce", "all", *SMALL, "--out", tmp_path / "paper")
    assert first.stat().st_mtime_ns == before  # that is not done again either
    again = aprune("reproduce", "figures", "--from", tmp_path / "paper", "--out", tmp_path / "b")
    page = (tmp_path / "b/logistic-fair/claims.md").read_text()
    assert page.startswith("# logistic, fair protocol")
    assert "With t_s = t_l/100" in page
    assert again.status == 0
    assert (tmp_path / "b/figure1-digits.png").exists()


def test_the_page_has_all_that_was_done_before(aprune: Callable[..., Any], tmp_path: Path) -> None:
    for figure in ("figure6", "figure7"):
        assert aprune("reproduce", figure, *SMALL, "--out", tmp_path).status == 0
    page = (tmp_path / "logistic-fair/claims.md").read_text()
    assert "figure 6 (50 images)" in page
    assert "figure 7 (25 images)" in page


@pytest.mark.parametrize("what", ["figure7", "all"])
def test_no_time_is_said_and_nothing_is_lost(
    aprune: Callable[..., Any], tmp_path: Path, what: str
) -> None:
    done = aprune("reproduce", what, *SMALL, "--out", tmp_path, "--time-limit", 1e-9)
    assert done.status == 0
    assert "run the same command again" in done.err
    # what is done in one go waits for what can be had bit by bit
    assert not (tmp_path / "figure1-digits.parquet").exists()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (("figure5", "--protocol", "kind"), "--protocol"),
        (("figure5", "--scale", "huge"), "--scale"),
        (("figure5", "--budget", "0"), "--budget"),
        (("figure5", "--parent", "vgg20"), "vgg20"),
        (("figure5", "--sparsity", "2"), "2"),
        (("figure5", "--seeds", "0"), "seeds"),
        (("figure5", "--time-limit", "-1"), "--time-limit"),
        (("figure5", "--device", "tpu"), "tpu"),
        (("all", "--images", "50"), "--images"),
        (("figures", "--from", "nowhere"), "nowhere"),
    ],
)
def test_nonsense_is_refused(
    aprune: Callable[..., Any], tmp_path: Path, wrong: tuple[str, ...], word: str
) -> None:
    aprune("reproduce", *wrong, "--out", tmp_path / "out").assert_refused(word)
    assert not (tmp_path / "out").exists()
