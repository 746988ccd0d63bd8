.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

help: ## Show this help
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | sort | expand -t 10

setup: $(VENV)/.ready ## Make .venv and install foxqueue with all its extras

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: setup ## Run real training runs through an embedded server, kill things, print what came out
	$(BIN)/python examples/demo.py

test: setup ## Run the tests on a real server (under five minutes on two cores)
	$(BIN)/python -m pytest -n 3

check: setup ## Lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup ## Print rates as ratios to an empty script call, measured in one run
	$(BIN)/python -m benchmarks

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist

.PHONY: help setup demo test check bench clean
