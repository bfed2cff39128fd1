"""The equations of the method, in the paper's symbols: torch only, no files, no global state."""
