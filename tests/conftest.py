"""What tests of several layers share."""

import pytest

from aprune.training import checkpoint


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state after every step."""
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", float("inf"))
