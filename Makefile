# `make demo` and `make test` set up everything they need in .venv and then run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test fuzz kill lint format setup clean

demo: setup
	$(BIN)/aprune demo

test: lint
	$(BIN)/pytest

# 100,000 damaged files; SECURITY.md says what they must not do
fuzz: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run

# 200 times SIGKILL, and files as if nothing had happened
kill: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m kill.run

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing aprune and its tools into $(VENV); PyTorch makes this take some minutes the first time."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
