# make study   sets up, runs the main job on this host (without GPUs: on a recorded machine)
# make test    sets up, checks and tests everything; WITH_TORCH=1 adds the tests that need torch
PYTHON ?= python3
MODEL ?= llama-3.1-8b
VENV := .venv
BIN := $(VENV)/bin

.PHONY: study test bench clean

$(VENV)/.study: pyproject.toml
	$(PYTHON) scripts/python_version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.test: $(VENV)/.study
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	scripts/browser
	touch $@

$(VENV)/.torch: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

study: $(VENV)/.study
	$(BIN)/linkbound study $(MODEL)

test: $(VENV)/.test $(if $(WITH_TORCH),$(VENV)/.torch)
	scripts/check
	scripts/test

bench: $(VENV)/.test
	$(BIN)/python benchmarks/bench_plans.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
