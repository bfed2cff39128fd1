import io
import sys

import pytest
import torch
from torch import Tensor, nn

from aprune.progress import bar
from aprune.tasks import load_task
from aprune.training import evaluate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_nothing_is_printed_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    for show in (None, False):
        with bar("work", 2, show=show) as advance:
            advance()
            advance(1, note="done")
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_shows_title_count_and_note(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    watch(monkeypatch, screen)
    with bar("reading [x]", 7, show=True) as advance:
        advance(3, note="loss [1.23]")
    text = screen.getvalue()
    assert "reading [x]" in text
    assert "3/7" in text
    assert "loss [1.23]" in text


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    watch(monkeypatch, screen)
    with bar("work", 2) as advance:
        advance(2)
    assert screen.getvalue() == ""


def test_long_work_shows_a_bar_but_none_within(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    watch(monkeypatch, screen)
    now = [0.0]
    monkeypatch.setattr("aprune.progress.time", type("Clock", (), {"monotonic": lambda: now[0]}))
    with bar("outer", 2) as advance:
        now[0] += 10
        advance(1)
        with bar("inner", 2) as advance_inner:
            now[0] += 10
            advance_inner(1)
    assert "outer" in screen.getvalue()
    assert "inner" not in screen.getvalue()


def test_an_error_passes_through_and_later_bars_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    watch(monkeypatch, screen)
    with pytest.raises(KeyError), bar("first", 2, show=True):
        raise KeyError("x")
    with bar("second", 2, show=True) as advance:
        advance(1)
    assert "second" in screen.getvalue()


def test_testing_shows_a_bar_that_begins_again_if_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = load_task("digits", classes=[0, 1])
    screen, small = Terminal(), len(task.test_labels) // 2

    class Scarce(nn.Module):
        """Has memory for half the images."""

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > small:
                raise torch.OutOfMemoryError
            return x.flatten(1)[:, :2]

    watch(monkeypatch, screen)
    monkeypatch.setattr(sys.modules["aprune.training.evaluate"], "_BATCH", 4 * small)
    accuracy = evaluate(Scarce(), task, progress=True)
    assert 0 <= accuracy <= 1
    assert "testing" in screen.getvalue()
    assert f"{len(task.test_labels)}/{len(task.test_labels)}" in screen.getvalue()
    screen.truncate(0)
    assert evaluate(Scarce(), task, progress=False) == accuracy
    assert screen.getvalue() == ""
