"""Rows to table and figure, against numbers worked out by hand."""

import math

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from aprune.experiments.accuracy import draw_accuracy
from aprune.experiments.report import (
    interval_of,
    name_arms,
    sparsities_of,
    tabulate,
    write_table,
)
from aprune.experiments.style import COLOURS
from aprune.maths.statistics import paired_interval


def rows(method: str, sparsity: float, accuracies: list[float], lr: float = 0.1) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "parent": "mlp",
            "method": method,
            "sparsity": sparsity,
            "images": 50,
            "seed": range(len(accuracies)),
            "lr": lr,
            "accuracy": accuracies,
            "diverged": [math.isnan(accuracy) for accuracy in accuracies],
        }
    )


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.concat(
        [
            rows("ap", 0.9, [0.8, 0.9, 1.0]),
            rows("random", 0.9, [0.7, 0.7, 0.7], lr=0.3),
            rows("ap", 0.99, [0.5, math.nan, 0.7]),
            rows("random", 0.99, [0.3, 0.9, 0.4]),
            rows("dense", 0.0, [0.9, 0.9, 0.9]),
        ],
        ignore_index=True,
    )


def test_table_has_means_counts_rates_and_paired_differences(frame: pd.DataFrame) -> None:
    table = tabulate(frame)
    lines = {row[:2]: row[2:] for row in table.rows}
    assert list(lines) == [
        ("0.9", "AP"),
        ("0.9", "random"),
        ("0.9", "dense"),
        ("0.99", "AP"),
        ("0.99", "random"),
        ("0.99", "dense"),
    ]
    assert lines["0.9", "AP"] == ("0.900 ± 0.100", "3", "0.1", "")
    assert lines["0.9", "random"] == ("0.700 ± 0.000", "3", "0.3", "+0.200")
    assert lines["0.99", "AP"][:2] == ("0.600 ± 0.141", "2 (1 diverged)")


def test_without_differences_to_ap_nothing_is_said_of_them(frame: pd.DataFrame) -> None:
    assert tabulate(frame).header[-1] == "AP − method"
    assert "AP − method is the mean" in write_table(frame)
    assert write_table(frame).splitlines()[0].endswith("from 5 seeds on.")
    for alone in (frame[frame["method"] != "ap"], frame[frame["method"] == "ap"]):
        table = tabulate(alone)
        assert table.header == ("sparsity", "method", "accuracy", "seeds", "learning rate")
        assert {len(row) for row in table.rows} == {5}
        assert table.rows[0][4] == ("0.3" if len(alone) == 9 else "0.1")
        assert "AP −" not in write_table(alone)
        assert write_table(alone).splitlines()[0].endswith("standard deviation over seeds.")


def test_only_seeds_that_both_finished_are_paired(frame: pd.DataFrame) -> None:
    interval = interval_of(frame, "ap", "random", 0.99)
    assert interval is not None
    # seeds 0 and 2: 0.5 − 0.3 and 0.7 − 0.4; seed 1 of AP diverged
    assert (interval.n, round(interval.mean, 6)) == (2, 0.25)
    shuffled = frame.sample(frac=1, random_state=0)
    again = interval_of(shuffled, "ap", "random", 0.99)
    assert again is not None
    assert math.isclose(again.mean, interval.mean)
    assert interval_of(frame, "ap", "imp", 0.99) is None


def test_dense_parent_is_compared_at_every_sparsity(frame: pd.DataFrame) -> None:
    at = [interval_of(frame, "ap", "dense", sparsity) for sparsity in (0.9, 0.99)]
    assert [round(i.mean, 6) for i in at if i is not None] == [0.0, -0.3]
    assert sparsities_of(frame) == [0.9, 0.99]
    assert sparsities_of(frame[frame.method == "dense"]) == [0.0]


def test_markdown_says_what_is_missing(frame: pd.DataFrame) -> None:
    text = write_table(frame)
    assert "| 0.99 | random | 0.533 ± 0.321 | 3 | 0.1 |" in text
    assert "1 retraining(s) diverged" in text
    assert "Not complete" not in text
    frame.attrs["complete"] = False
    assert "Not complete" in write_table(frame)
    assert "No retraining is finished" in write_table(frame.iloc[:0])


def test_an_interval_takes_five_seeds() -> None:
    ours, theirs = [0.80, 0.82, 0.81, 0.85, 0.84], [0.70, 0.75, 0.70, 0.70, 0.75]
    five = pd.concat([rows("ap", 0.9, ours), rows("imp", 0.9, theirs)])
    interval = paired_interval(ours, theirs)
    expected = f"+0.104 [{interval.low:+.3f}, {interval.high:+.3f}]"
    assert tabulate(five).rows[1][5] == expected
    assert tabulate(five[five.seed < 4]).rows[1][3:] == ("4", "0.1", "+0.108")


def test_method_that_always_diverged_is_said_to_have(frame: pd.DataFrame) -> None:
    dead = pd.concat([frame, rows("imp", 0.9, [math.nan, math.nan])])
    line = next(row for row in tabulate(dead).rows if row[:2] == ("0.9", "IMP"))
    assert line[2:] == ("diverged", "0 (2 diverged)", "0.1", "")
    labels = draw_accuracy(dead).axes[0].get_legend_handles_labels()[1]
    assert labels == ["dense", "AP", "random"] or sorted(labels) == ["AP", "dense", "random"]


def test_figure_has_a_line_a_method_and_a_band_for_the_dense_parent(frame: pd.DataFrame) -> None:
    axes = draw_accuracy(frame).axes[0]
    handles, labels = axes.get_legend_handles_labels()
    drawn = dict(zip(labels, handles, strict=True))
    assert set(drawn) == {"AP", "random", "dense"}
    line = drawn["random"].lines[0]
    assert to_hex(line.get_color()) == COLOURS["random"].lower()
    assert [round(y, 6) for y in line.get_ydata()] == [0.7, round(1.6 / 3, 6)]
    assert drawn["dense"].get_ydata() == [0.9, 0.9]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.9", "0.99"]
    left, right = axes.get_xlim()
    assert left > right  # sparser towards the right


def test_the_dense_parent_alone_is_drawn_by_seeds() -> None:
    alone = pd.concat([rows("dense", 0.0, [0.8, 0.9, 1.0]), rows("dense, fine_tuned", 0.0, [0.7])])
    (axes,) = draw_accuracy(alone).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["dense", "dense, fine-tuned"]
    assert axes.get_xlabel() == ""  # there is no sparsity
    seeds = [points.get_offsets()[:, 1].tolist() for points in axes.collections[:1]]
    assert seeds == [[0.8, 0.9, 1.0]]
    means = [bars.lines[0].get_ydata().tolist() for bars in axes.containers]
    assert [mean for (mean,) in means] == pytest.approx([0.9, 0.7])
    (bar,) = axes.containers[0].lines[2][0].get_segments()
    assert bar[:, 1].tolist() == pytest.approx([0.8, 1.0])


def test_a_figure_says_when_it_is_of_the_papers_protocol(frame: pd.DataFrame) -> None:
    for protocol, says in (("fair", False), ("paper", True)):
        title = draw_accuracy(frame.assign(protocol=protocol)).axes[0].get_title()
        assert title.endswith("the paper's protocol") == says


def test_paired_differences_are_drawn_below_from_five_seeds_on() -> None:
    ours, theirs = [0.80, 0.82, 0.81, 0.85, 0.84], [0.70, 0.75, 0.70, 0.70, 0.75]
    five = pd.concat([rows("ap", 0.9, ours), rows("imp", 0.9, theirs), rows("dense", 0.0, ours)])
    above, below = draw_accuracy(five).axes
    assert len(above.collections) == 2  # a band each for AP and IMP; the dense parent's is a patch
    (imp, dense) = below.containers
    assert imp.lines[0].get_ydata().tolist() == pytest.approx([0.104])
    ends = imp.lines[2][0].get_segments()[0][:, 1]
    interval = paired_interval(ours, theirs)
    assert ends.tolist() == pytest.approx([interval.low, interval.high])
    assert dense.lines[0].get_ydata().tolist() == [0.0]
    assert len(draw_accuracy(five[five["seed"] < 4]).axes) == 1


def test_labels_of_sparsities_do_not_run_into_each_other() -> None:
    seven = pd.concat(rows("ap", s, [0.5]) for s in (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99))
    ticks = draw_accuracy(seven).axes[0].get_xticklabels()
    assert [t.get_text() for t in ticks] == ["0.1", "", "0.5", "0.7", "0.9", "0.95", "0.99"]


def test_old_and_new_rows_name_their_variants_alike(frame: pd.DataFrame) -> None:
    old = rows("ap", 0.9, [0.6]).assign(reshuffled=True)
    new = rows("ap", 0.9, [0.6]).assign(reshuffled=True, variant="reshuffled")
    bare = rows("ap", 0.9, [0.6]).assign(reshuffled=False, variant="bare")
    together = pd.concat([frame.assign(reshuffled=False), old, new, bare], ignore_index=True)
    named = name_arms(together)["method"]
    assert named.tolist()[-3:] == ["ap, reshuffled", "ap, reshuffled", "ap, bare"]
    assert named[: len(frame)].tolist() == frame["method"].tolist()
    assert name_arms(name_arms(together))["method"].tolist() == named.tolist()


def test_reshuffled_rows_are_a_method_of_their_own(frame: pd.DataFrame) -> None:
    moved = rows("ap", 0.9, [0.6, 0.8, 0.7]).assign(reshuffled=True)
    both = pd.concat([frame.assign(reshuffled=False), moved], ignore_index=True)
    lines = {row[:2]: row[2:] for row in tabulate(both).rows}
    assert lines["0.9", "AP"][0] == "0.900 ± 0.100"
    assert lines["0.9", "AP, reshuffled"] == ("0.700 ± 0.100", "3", "0.1", "+0.200")
    handles, labels = draw_accuracy(both).axes[0].get_legend_handles_labels()
    drawn = dict(zip(labels, handles, strict=True))
    assert set(drawn) == {"AP", "AP, reshuffled", "random", "dense"}
    for label in ("AP", "AP, reshuffled"):
        assert to_hex(drawn[label].lines[0].get_color()) == COLOURS["ap"].lower()
    assert both["method"].tolist().count("ap") == 9  # whoever calls it keeps their rows
