"""Fixtures for all tests."""

import os
from collections.abc import Iterator

import pytest
import torch

from aprune.training import device

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported: Triton asks only then


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are faster with one thread, and the tests run side by side."""
    with device.one_thread():
        yield
