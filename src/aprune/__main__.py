"""`python -m aprune` is the command `aprune`."""

from aprune.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
