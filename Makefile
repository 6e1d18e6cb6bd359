# All set-up included: each target first makes .venv with what it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := all,dev
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

.PHONY: compare install check test

compare: install ## the main job: all six modes on the built-in digits, compared, and a page of it
	$(BIN)/dpcompare compare --out studies/modes
	$(BIN)/dpcompare report studies/modes --html studies/modes/report.html

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $@

check: install ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

test: install ## the tests, PYTEST_WORKERS at a time; PYTEST_ARGS='-m slow' for the slow ones
	$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGS)
