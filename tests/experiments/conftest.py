"""What tests of comparisons share."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from aprune import Retraining, bulk
from aprune.experiments import comparison as module
from aprune.experiments import retrain, run
from tiny import TINY, do


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the time that figures take where they are not looked at."""
    monkeypatch.setattr(module.style, "save", lambda figure, path: None)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch, no_figure: None) -> Counter[str]:
    """Count the real searches and retrainings."""
    counter: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counter[name] += 1
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(run, "search", counted("search", run.search))
    monkeypatch.setattr(bulk, "prepare", counted("transfer", bulk.prepare))
    return counter


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, no_figure: None) -> list[int]:
    """Note how many retrainings are done together."""
    sizes: list[int] = []
    original = retrain.transfer_many

    def noted(todo: Iterator[Retraining], **more: Any) -> Iterator[Any]:
        sizes.append(0)
        for done in original(todo, **more):
            sizes[-1] += 1
            yield done

    monkeypatch.setattr(retrain, "transfer_many", noted)
    return sizes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    out = tmp_path_factory.mktemp("whole")
    return do(TINY, out), out
