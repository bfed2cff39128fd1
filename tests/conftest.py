"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from aprune.training import device


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are faster with one thread, and the tests run side by side."""
    with device.one_thread():
        yield
