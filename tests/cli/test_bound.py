"""`aprune bound`: the numbers of Theorem 1, shown, as JSON and refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

GIVEN = {"--t-l": 8, "--t-s": 4, "--steps": 100, "--c": 0.5, "--g": 2, "--m": 0, "--d": 10}


def words_of(options: dict[str, object]) -> list[object]:
    return [word for pair in options.items() for word in pair]


def test_numbers_by_hand(aprune: Callable[..., Any]) -> None:
    # a_min = a_max = 2, so C = 1 − 4 + 4 = 1; but 1 + C = 2 is less than a_max² = 4
    told = json.loads(aprune("bound", *words_of(GIVEN), "--json").out)
    assert told.pop("printed") == pytest.approx(1 / 5 + 0.5 * 4 * 2 * (1 + 4.605170186) / 100)
    assert told.pop("corrected") == pytest.approx(10 / 10 + 0.5 * 4 * 4 / 10)
    assert told.pop("unconditional") == pytest.approx(1.8 + 2 * 10**0.5)
    assert told == {
        **{"t_l": 8, "t_s": 4, "steps": 100, "c": 0.5, "g": 2, "m": 0, "d": 10},
        **{"g_max_l": 0.25, "g_max_s": 0.25, "C": 1},
    }


def test_the_table(aprune: Callable[..., Any]) -> None:
    shown = aprune("bound", *words_of(GIVEN))
    assert shown.status == 0
    assert [line.split()[:2] for line in shown.out.splitlines()[3:9]] == [
        ["g_max_l", "0.25"],
        ["g_max_s", "0.25"],
        ["C", "1"],
        ["printed", "0.424207"],
        ["corrected", "1.8"],
        ["unconditional", "8.12456"],
    ]


def test_without_the_dimension(aprune: Callable[..., Any]) -> None:
    given = words_of({key: value for key, value in GIVEN.items() if key != "--d"})
    told = json.loads(aprune("bound", *given, "--json").out)
    assert (told["d"], told["corrected"], told["unconditional"]) == (None, None, None)
    shown = aprune("bound", *given).out
    assert shown.count("–") == 2
    assert "Give --d" in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--t-l": 0}, ["t_l is 0", "above 0"]),
        ({"--t-s": -1}, ["t_s is -1"]),
        ({"--t-s": "warm"}, ["--t-s", "aprune bound --help"]),
        ({"--steps": 0}, ["steps is 0", "from 1 on"]),
        ({"--c": 0}, ["c is 0"]),
        ({"--g": -1}, ["g is -1", "from 0 on"]),
        ({"--m": "nan"}, ["m is nan"]),
        ({"--d": 0}, ["--d", "above 0"]),
        ({"--d": "inf"}, ["--d", "above 0"]),
        ({"--t-l": 1e300}, ["t_l is 1e+300", "choose smaller ones"]),
    ],
)
def test_nonsense_is_refused(
    aprune: Callable[..., Any], changes: dict[str, object], words: list[str]
) -> None:
    aprune("bound", *words_of(GIVEN | changes)).assert_refused(*words)


def test_it_needs_its_options(aprune: Callable[..., Any]) -> None:
    aprune("bound", "--t-l", 100).assert_refused("aprune bound --help")


def test_it_needs_no_pytorch() -> None:
    given = [str(word) for word in words_of(GIVEN)]
    code = (
        f"import sys, aprune.cli as c; c.main(['bound', *{given}]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_a_search_records_on_demand(aprune: Callable[..., Any], tmp_path: Any) -> None:
    search = ("--parent", "logistic", "--task", "digits", "--classes", "0,1", "--steps", 20)
    found = aprune(
        "find", *search, "--sparsity", "0.5", "--set", "record=true", "--out", tmp_path, "--json"
    )
    assert found.status == 0, found.err
    file = json.loads(found.out)["architectures"][0]["file"]
    told = json.loads(aprune("show", file, "--json").out)["provenance"]
    assert told["settings"]["record"] is True
    assert list(told["theory"]) == ["G", "M", "C", "ratio_mean", "ratio_max", "steps"]
    assert "theory: G " in aprune("show", file).out
