"""The paper's claims, judged from rows made by hand."""

import math
import re
from collections.abc import Callable

import pandas as pd
import pytest

from aprune.errors import SettingError
from aprune.experiments.claims import (
    LITTLE,
    MARGIN,
    POOR,
    Verdict,
    judge,
    judge_convergence,
)
from aprune.experiments.page import PRINTED, table1, write_page
from aprune.experiments.paper import draw_table1
from aprune.maths.statistics import paired_interval

NOISE = (-0.01, 0.0, 0.01, 0.005, -0.005)  # of a seed, the same for every method
IMAGES = {2: 5000, 3: 5000, 4: 1000, 5: 500, 6: 100, 7: 50}


def rows(
    figure: int,
    method: str,
    accuracies: float | list[float],
    *,
    sparsity: float = 0.9,
    reshuffled: bool = False,
    parent: str = "vgg19",
    protocol: str = "fair",
) -> pd.DataFrame:
    """Rows of a method, a seed each; of a single number with `NOISE`."""
    if isinstance(accuracies, float):
        accuracies = [accuracies + noise for noise in NOISE]
    return pd.DataFrame(
        {
            "figure": f"figure{figure}",
            "parent": parent,
            "protocol": protocol,
            "method": method,
            "reshuffled": reshuffled,
            "sparsity": sparsity,
            "images": IMAGES[figure],
            "seed": range(len(accuracies)),
            "accuracy": accuracies,
        }
    )


def figure(number: int, **accuracies: float | list[float]) -> pd.DataFrame:
    """Rows of several methods; `ap_moved` is AP after reshuffling."""
    return pd.concat(
        [
            rows(
                number,
                name.removesuffix("_moved"),
                accuracy,
                reshuffled=name.endswith("_moved"),
                sparsity=0.0 if name == "dense" else 0.9,
            )
            for name, accuracy in accuracies.items()
        ],
        ignore_index=True,
    )


def verdict_of(number: int, *frames: pd.DataFrame) -> Verdict:
    verdicts = {v.number: v for v in judge(pd.concat(frames, ignore_index=True))}
    assert list(verdicts) == [2, 3, 4, 5]
    return verdicts[number]


def alternating(mean: float, swing: float) -> list[float]:
    """Accuracies whose difference to an even method changes its sign from seed to seed."""
    return [mean + (swing if seed % 2 else -swing) for seed in range(6)]


@pytest.mark.parametrize(
    ("imp", "ap", "random", "expected"),
    [
        (0.8, 0.7, 0.6, "holds"),
        (0.7, 0.8, 0.6, "does not hold"),
        (0.7, 0.6, 0.8, "does not hold"),
        (0.7, 0.7, 0.6, "undecided"),  # a difference of 0 is none
    ],
)
def test_claim_2_asks_for_imp_above_both(
    imp: float, ap: float, random: float, expected: str
) -> None:
    verdict = verdict_of(2, figure(2, imp=imp, ap=ap, random=random, dense=0.9))
    assert verdict.verdict == expected
    assert [line.split(", ")[1].split(" > ")[0] for line in verdict.evidence] == [
        "IMP − AP",
        "IMP − random",
    ]


def test_an_interval_across_zero_decides_nothing() -> None:
    frame = figure(2, imp=alternating(0.71, 0.05), ap=[0.7] * 6, random=[0.5] * 6)
    verdict = verdict_of(2, frame)
    assert verdict.verdict == "undecided"
    assert "undecided, +0.010 [" in verdict.evidence[0]
    assert ": yes, +0.210 [" in verdict.evidence[1]


def test_differences_are_averaged_over_common_sparsities_and_paired_by_seed() -> None:
    low, high = [0.80, 0.82, 0.81, 0.85, 0.84], [0.70, 0.75, 0.70, 0.70, 0.75]
    other_low, other_high = [0.6, 0.7, 0.6, 0.6, 0.7], [0.6, 0.6, 0.7, 0.6, 0.5]
    frame = pd.concat(
        [
            rows(2, "imp", low, sparsity=0.5),
            rows(2, "imp", high, sparsity=0.9),
            rows(2, "imp", 0.1, sparsity=0.99),  # AP has none
            rows(2, "ap", other_low, sparsity=0.5),
            rows(2, "ap", other_high, sparsity=0.9),
        ]
    )
    differences = [
        (a - b + c - d) / 2 for a, b, c, d in zip(low, other_low, high, other_high, strict=True)
    ]
    interval = paired_interval(differences, [0.0] * 5)
    line = verdict_of(2, frame.sample(frac=1, random_state=0)).evidence[0]
    assert line.endswith(f"> 0: yes, {interval:+.3f} over 5 seeds, 2 sparsities")
    assert f"{interval.mean:+.3f}" == "+0.152"


@pytest.mark.parametrize(
    ("at_1000", "at_500", "expected"),
    [
        ((0.8, 0.7, 0.6), (0.6, 0.5, 0.4), "holds"),
        ((0.8, 0.7, 0.6), (0.6, 0.4, 0.5), "does not hold"),
        ((0.7, 0.8, 0.6), (0.6, 0.5, 0.4), "does not hold"),
        ((0.8, 0.7, 0.7), (0.6, 0.5, 0.4), "undecided"),
    ],
)
def test_claim_3_asks_for_the_order_in_both_figures(
    at_1000: tuple[float, ...], at_500: tuple[float, ...], expected: str
) -> None:
    frames = [
        figure(number, **dict(zip(("ap", "random", "imp"), accuracies, strict=True)))
        for number, accuracies in ((4, at_1000), (5, at_500))
    ]
    # rows that were reshuffled are no part of this claim
    verdict = verdict_of(3, *frames, figure(5, ap_moved=0.1, imp_moved=0.9))
    assert verdict.verdict == expected
    assert [line.split(":")[0] for line in verdict.evidence] == [
        "figure 4 (1,000 images), AP − random > 0",
        "figure 4 (1,000 images), random − IMP > 0",
        "figure 5 (500 images), AP − random > 0",
        "figure 5 (500 images), random − IMP > 0",
    ]


def test_half_a_claim_is_undecided_unless_it_is_reversed() -> None:
    verdict = verdict_of(3, figure(4, ap=0.8, random=0.7, imp=0.6))
    assert verdict.verdict == "undecided"
    assert verdict.evidence[2:] == (
        "figure 5, AP − random > 0: not measured",
        "figure 5, random − IMP > 0: not measured",
    )
    assert verdict_of(3, figure(4, ap=0.6, random=0.7)).verdict == "does not hold"


POOR_ONES = {"ap": 0.3, "random": 0.2, "imp": 0.1, "dense": 0.4}


@pytest.mark.parametrize(
    ("ap", "six", "seven", "expected"),
    [
        (0.70 + MARGIN / 2, POOR_ONES, POOR_ONES, "holds"),
        (0.70 - MARGIN / 2, POOR_ONES, POOR_ONES, "holds"),
        (0.70 + 2 * MARGIN, POOR_ONES, POOR_ONES, "does not hold"),
        (0.70 - 2 * MARGIN, POOR_ONES, POOR_ONES, "does not hold"),
        (0.70, POOR_ONES | {"dense": 0.6}, POOR_ONES, "does not hold"),
        (0.70, POOR_ONES, POOR_ONES | {"imp": POOR + 0.01}, "does not hold"),
    ],
)
def test_claim_4_asks_for_a_small_difference_and_poor_accuracy(
    ap: float, six: dict[str, float], seven: dict[str, float], expected: str
) -> None:
    verdict = verdict_of(4, figure(3, ap=ap, random=0.7), figure(6, **six), figure(7, **seven))
    assert verdict.verdict == expected


def test_claim_4_is_undecided_across_the_margin() -> None:
    wide = figure(3, ap=alternating(0.7, 0.1), random=[0.7] * 6)
    poor = [figure(6, **POOR_ONES), figure(7, **POOR_ONES)]
    verdict = verdict_of(4, wide, *poor)
    assert verdict.verdict == "undecided"
    assert "AP − random within ±0.02: undecided, +0.000 [" in verdict.evidence[0]
    assert verdict.evidence[1:] == (
        "figure 6 (100 images), best mean accuracy < 0.5: yes, dense has 0.400 ± 0.008 over 5 seeds",
        "figure 7 (50 images), best mean accuracy < 0.5: yes, dense has 0.400 ± 0.008 over 5 seeds",
    )


def test_poor_is_the_best_method_at_its_best_sparsity() -> None:
    better = rows(6, "ap", [0.7, 0.4, 0.7, 0.7, 0.4, math.nan], sparsity=0.5)
    verdict = verdict_of(4, figure(6, **POOR_ONES), better)
    assert verdict.evidence[1].endswith(
        ": no, AP at sparsity 0.5 has 0.580 ± 0.164 over 5 seeds (left out: 1 run diverged)"
    )
    assert verdict.verdict == "does not hold"


def test_a_few_seeds_do_not_say_who_is_poor() -> None:
    few = rows(6, "ap", [0.7, 0.7, 0.7, 0.7], sparsity=0.5)
    verdict = verdict_of(4, few)
    assert verdict.verdict == "undecided"
    assert verdict.evidence[1].endswith(
        ": undecided below 5 seeds, AP at sparsity 0.5 has 0.700 ± 0.000 over 4 seeds,"
        " not measured: random, IMP"
    )


def test_everything_is_not_poor_while_a_method_is_missing() -> None:
    like = figure(3, ap=0.7, random=0.7)
    verdict = verdict_of(4, like, figure(6, ap=0.3, random=0.2), figure(7, **POOR_ONES))
    assert verdict.verdict == "undecided"
    assert "undecided, AP at sparsity 0.9 has 0.300" in verdict.evidence[1]
    assert verdict.evidence[1].endswith("not measured: IMP")
    assert verdict_of(4, figure(6, ap=0.9)).verdict == "does not hold"
    dead = verdict_of(4, figure(6, ap=[math.nan] * 5))
    assert dead.verdict == "undecided"
    assert "no run finished (left out: 5 runs diverged)" in dead.evidence[1]


@pytest.mark.parametrize(
    ("ap_moved", "imp_moved", "expected"),
    [
        (0.6 - LITTLE / 2, 0.3, "holds"),
        (0.8, 0.3, "holds"),  # a gain is little of a loss
        (0.6 - 2 * LITTLE, 0.3, "does not hold"),
        (0.58, 0.7, "does not hold"),
        (0.58, 0.58, "undecided"),
        (alternating(0.55, 0.1), 0.3, "undecided"),
    ],
)
def test_claim_5_asks_for_a_small_loss_and_imp_below(
    ap_moved: float | list[float], imp_moved: float, expected: str
) -> None:
    frame = figure(5, ap=0.6, imp=0.9, ap_moved=ap_moved, imp_moved=imp_moved)
    verdict = verdict_of(5, frame)
    assert verdict.verdict == expected
    assert [re.sub(":.*", "", line) for line in verdict.evidence] == [
        "figure 5 (500 images), AP − (AP, reshuffled) < 0.05",
        "figure 5 (500 images), (AP, reshuffled) − (IMP, reshuffled) > 0",
    ]


def test_what_was_not_measured_is_said() -> None:
    frame = figure(2, ap=0.7)
    for verdicts in (judge(frame), judge(frame.iloc[:0]), judge(pd.DataFrame())):
        assert {v.verdict for v in verdicts} == {"undecided"}
        assert {v.evidence for v in verdicts} == {("not measured",)}
    apart = pd.concat([rows(2, "imp", 0.8, sparsity=0.5), rows(2, "ap", 0.7, sparsity=0.9)])
    assert verdict_of(2, apart).evidence == ("not measured",)


def test_too_few_seeds_decide_no_order() -> None:
    frame = figure(2, imp=[0.8] * 4, ap=[0.7] * 4, random=[0.9] * 4)
    verdict = verdict_of(2, frame)
    assert verdict.verdict == "undecided"
    assert verdict.evidence == (
        "figure 2 (5,000 images), IMP − AP > 0: undecided below 5 seeds,"
        " +0.100 over 4 seeds, 1 sparsity",
        "figure 2 (5,000 images), IMP − random > 0: undecided below 5 seeds,"
        " -0.100 over 4 seeds, 1 sparsity",
    )
    one = verdict_of(2, frame[frame["seed"] == 0])
    assert "+0.100 over 1 seed, 1 sparsity" in one.evidence[0]


def test_diverged_pairs_are_left_out_and_counted() -> None:
    nan = math.nan
    frame = pd.concat(
        [
            rows(2, "imp", [0.8, 0.8, 0.8, 0.8, nan], sparsity=0.5),
            rows(2, "imp", [0.8] * 5, sparsity=0.9),
            rows(2, "ap", [nan, 0.7, 0.7, 0.7, 0.7], sparsity=0.5),
            rows(2, "ap", [0.7] * 4, sparsity=0.9),
        ]
    )
    # seed 4 of AP is not there at 0.9 and diverged at 0.5: four seeds are left
    line = verdict_of(2, frame).evidence[0]
    assert line.endswith(
        "undecided below 5 seeds, +0.100 over 4 seeds, 2 sparsities"
        " (left out: 2 pairs diverged, 1 pair not measured)"
    )
    verdict = verdict_of(2, figure(2, imp=0.8, ap=[nan] * 5))
    assert verdict.verdict == "undecided"
    assert verdict.evidence[0].endswith("no pair finished (left out: 5 pairs diverged)")


@pytest.mark.parametrize("function", [judge, table1])
def test_mixed_rows_are_refused(function: Callable[[pd.DataFrame], object]) -> None:
    frame = figure(5, ap=0.8, imp=0.7)
    with pytest.raises(SettingError, match=r"2 values of parent \(resnet18, vgg19\)"):
        function(pd.concat([frame, rows(5, "random", 0.7, parent="resnet18")]))
    with pytest.raises(SettingError, match=r"2 values of protocol \(fair, paper\)"):
        function(pd.concat([frame, rows(5, "random", 0.7, protocol="paper")]))
    with pytest.raises(SettingError, match=r"ap in figure5 at sparsity 0\.9 with seed 0 more"):
        function(pd.concat([frame, rows(5, "ap", 0.8)]))


def test_number_of_images_decides_nothing() -> None:
    frame = figure(2, imp=0.8, ap=0.7, random=0.6).assign(images=200)
    verdict = verdict_of(2, frame)
    assert verdict.verdict == "holds"
    assert verdict.evidence[0].startswith("figure 2 (200 images), ")


def test_whoever_calls_it_keeps_their_rows() -> None:
    frame = figure(5, ap=0.6, ap_moved=0.6)
    before = frame.copy()
    judge(frame)
    table1(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_printed_table_is_that_of_the_paper() -> None:
    assert list(PRINTED) == ["ap", "imp"]
    for printed in PRINTED.values():
        assert list(printed) == [0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99]
    assert list(PRINTED["ap"].values()) == [0.378, 0.343, 0.429, 0.448, 0.497, 0.301, 0.1]
    assert list(PRINTED["imp"].values()) == [0.3, 0.332, 0.342, 0.376, 0.1, 0.1, 0.1]


def test_table_has_a_line_a_sparsity_and_method() -> None:
    frame = pd.concat(
        [
            rows(5, "ap", [0.6, 0.4, math.nan], sparsity=0.9),
            rows(5, "ap", [0.5, 0.5], sparsity=0.9, reshuffled=True),
            rows(5, "imp", [math.nan], sparsity=0.9, reshuffled=True),
            rows(5, "ap", [0.3], sparsity=0.98),
            rows(5, "random", [0.3], sparsity=0.3),
            rows(4, "ap", [0.3], sparsity=0.1),
        ]
    )
    table = table1(frame)
    assert len(table.header) == 5
    assert table.rows == (
        ("0.9", "AP", "0.500 ± 0.141 (1 diverged)", "0.500 ± 0.000", "0.497"),
        ("0.9", "IMP", "–", "diverged", "0.100"),
        ("0.98", "AP", "0.300", "–", "–"),
    )
    assert table1(frame.iloc[:0]).rows == table1(pd.DataFrame()).rows == ()


@pytest.mark.parametrize(("parent", "marks"), [("vgg19", 2), ("vgg19_bn", 0)])
def test_what_the_paper_printed_is_drawn_and_named_for_its_parent(parent: str, marks: int) -> None:
    frame = pd.concat(
        rows(5, method, 0.6, reshuffled=moved, parent=parent)
        for method in ("ap", "imp")
        for moved in (False, True)
    )
    drawn = draw_table1(frame)
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert sum(name.endswith("in the paper") for name in names) == marks
    assert len(names) == 4 + marks
    crosses = [line for line in drawn.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses] == [
        list(printed.values()) for printed in PRINTED.values()
    ][:marks]


def test_page_has_verdicts_evidence_and_table() -> None:
    frame = pd.concat(
        [figure(2, imp=0.8, ap=0.7, random=0.6), figure(5, ap=0.6, ap_moved=0.58)],
        ignore_index=True,
    )
    verdicts = judge(frame)
    page = write_page(verdicts, table1(frame))
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [
        "Verdicts",
        "Claim 2: holds",
        "Claim 3: undecided",
        "Claim 4: undecided",
        "Claim 5: undecided",
        "Table 1",
    ]
    for verdict in verdicts:
        assert f"| {verdict.number} | {verdict.claim} | {verdict.verdict} |\n" in page
        for line in verdict.evidence:
            assert f"\n- {line}\n" in page
    assert "| 0.9 | AP | 0.600 ± 0.008 | 0.580 ± 0.008 | 0.497 |\n" in page
    assert page.endswith("|\n")
    for nothing in (None, table1(frame.iloc[:0])):
        assert write_page(verdicts, nothing).endswith("## Table 1\n\nNot measured.\n")


def convergence(warm: list[float], left: list[int], seeds: int = 5) -> pd.DataFrame:
    """Return a figure 1 in which the exact gradient ends at 0.5 on every seed."""
    curves = {1000.0: [0.7, 0.5], 10.0: [0.7, *warm], 1.0: [0.7, 0.7]}
    return pd.DataFrame(
        [
            {
                "data": "digits",
                "t_s": t_s,
                "seed": seed,
                "iteration": 10 * number,
                "objective": value + 0.001 * seed * (t_s == 10.0),
                "active": left[seed] if t_s == 1.0 else 5,
            }
            for t_s, values in curves.items()
            for seed in range(seeds)
            for number, value in enumerate(values)
        ]
    )


@pytest.mark.parametrize(
    ("warm", "left", "seeds", "verdict"),
    [
        ([0.4, 0.3], [0] * 5, 5, "holds"),
        ([0.4, 0.3], [0, 0, 1, 0, 0], 5, "undecided"),
        ([0.4, 0.3], [1] * 5, 5, "does not hold"),
        ([0.6, 0.6], [0] * 5, 5, "does not hold"),
        ([0.4, 0.3], [0] * 5, 2, "undecided"),
    ],
)
def test_the_first_claim(warm: list[float], left: list[int], seeds: int, verdict: str) -> None:
    exact = convergence(warm, left, seeds)
    # a third point for the exact gradient, so that all end at the same iteration
    end = exact[(exact["t_s"] != 10.0) & (exact["iteration"] == 10)].assign(iteration=20)
    judged = judge_convergence(pd.concat([exact, end], ignore_index=True))
    assert (judged.number, judged.verdict) == (1, verdict)
    assert len(judged.evidence) == 3
