# `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
# Elsewhere: an index of CPU wheels of torch, handed to pip as --extra-index-url. Empty: pip's own.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
RESULTS := sample_checkpoints/.results
FIGURES := sample_checkpoints/figures
# sums repeat, and workers do not fight over processors
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help install demo samples test lint types bench golden clean

help: ## Say what each target does.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Make .venv with what was tested.

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint .ci/constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) install --quiet --constraint .ci/constraints.txt --editable '.[test]'
	@touch $@

demo: $(VENV)/.installed ## Analyse the sample runs, draw the two figures, print where they are.
	$(BIN)/spectrograd analyze sample_checkpoints -o $(RESULTS)
	$(BIN)/spectrograd plot $(RESULTS) -o $(RESULTS)/figures --format png --format svg
	$(BIN)/spectrograd compare $(RESULTS)

samples: $(VENV)/.installed ## Train the sample runs again (an hour; goes on where it was interrupted).
	$(BIN)/python sample_checkpoints/train.py

test: lint types ## Run lint, types and all tests.
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(VENV)/.installed ## Check style and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed ## Check types.
	$(BIN)/mypy

bench: $(VENV)/.installed ## Time analyze against WeightWatcher on the same weights; run it alone.
	$(PIP) install --quiet --constraint .ci/constraints.txt --editable '.[bench]'
	$(BIN)/python tests/bench/against_weightwatcher.py

golden: $(VENV)/.installed ## Draw the golden pictures again, and the figures of the README.
	$(BIN)/python tests/figures/golden.py
	$(BIN)/spectrograd analyze sample_checkpoints -o $(RESULTS)
	$(BIN)/spectrograd plot $(RESULTS) -o $(FIGURES) --format png --format svg

clean: ## Remove what was made: environment, caches, the demo's results.
	rm -rf $(VENV) $(RESULTS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
