# All set-up included: each target first makes .venv with what it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
EXTRAS := all,dev
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

.PHONY: compare install check test test-lowest site

compare: $(VENV)/.report ## the main job: the usual modes trained here and compared, and a page of it
	$(BIN)/dpcompare setup
	$(BIN)/dpcompare compare --out studies/modes
	$(BIN)/dpcompare report studies/modes --html studies/modes/report.html

# Without frameworks, for which `dpcompare setup` makes environments, with builds for CPUs where there is no GPU.
$(VENV)/.report: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[report]'
	touch $@

install: $(VENV)/.installed

# uv takes 90 seconds where pip takes five minutes, but does not know an index or constraints that pip is configured with.
# uv compiles bytecode only if asked to: where PYTHONDONTWRITEBYTECODE is set, every process would compile its imports.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	! $(BIN)/python -m pip config list | grep -qE '[.](index-url|no-index|constraint|proxy)=' && $(PIP) uv && \
		$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[$(EXTRAS)]' || $(PIP) -e '.[$(EXTRAS)]'
	touch $@

check: install ## lint, format, types, imports, spelling: the hooks of .pre-commit-config.yaml
	PATH="$(abspath $(BIN)):$$PATH" pre-commit run --all-files

test: install ## the tests, PYTEST_WORKERS at a time; PYTEST_ARGS='-m "slow and not long"' for the slow ones
	$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

test-lowest: ## some of the tests with the lowest versions that pyproject.toml admits, in an environment of their own
	bash .ci/lowest

site: install ## the docs as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
