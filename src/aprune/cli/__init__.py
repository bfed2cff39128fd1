"""The command line: parse, call, print; one file a verb.

PyTorch takes seconds to import, so the verbs import what they need when they are called and
`--help` answers at once.
"""

from aprune.cli.app import main

__all__ = ["main"]
