"""A few kills of `make kill`."""

import os
import subprocess
import sys
from pathlib import Path


def test_kills_leave_no_trace() -> None:
    tests = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-m", "kill.run", "--kills", "12", "--seed", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "12 kills" in ended.stdout
