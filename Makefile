# SPDX-License-Identifier: Apache-2.0
# make demo   set up .venv and run the main job: build, check and time an op of each kind
# make test   set up .venv and run the linters and the test suite
# make nightly   the same with what takes hours: every row of the check in full, for every op
# make venv   set up .venv alone

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: venv demo test nightly lint kernels clean

venv: $(VENV)/ready

# torch first and pinned: pip then takes a CPU build where one is offered, and opforge adds nothing.
$(VENV)/ready: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --progress-bar off -r requirements-dev.txt
	$(BIN)/pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --editable .
	touch $@

demo: venv
	$(BIN)/python examples/demo.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.h' '*.cuh' '*.cu' '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

# What most tests call, compiled side by side.
kernels: venv
	$(BIN)/python tests/support/build_kernels.py

# While one core lints, the other begins to compile.
test: venv
	$(MAKE) --no-print-directory --jobs 2 lint kernels
	# Threads that wait spinning slow each other down where the tests share the cores.
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal --durations 30 $(PYTEST)

nightly: PYTEST = --nightly --timeout 1800
nightly: test

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
