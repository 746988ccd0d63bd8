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
	rm -rf $(VENV)/rq-2.12 # the oldest RQ that is supported, beside the newest
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/rq-2.12 "rq==2.12.*"
	@touch $@

demo: setup ## Run real training runs through an embedded server, kill things, print what came out
	$(BIN)/python examples/demo.py

test: setup ## Run the tests on a real server (under five minutes on two cores)
	$(BIN)/python -m pytest -n 5

test-server: setup ## Run the main job's scenarios on another server program (SERVER=/usr/bin/redis-server)
	STACK_SERVER=$(SERVER) $(BIN)/python -m pytest -n 4 tests/system/test_must_hold.py tests/system/test_reports_*.py \
		tests/system/test_worst_cases.py tests/system/test_odd_moments.py tests/system/test_strays.py

soak: setup ## Random walks and things killed every second, for minutes (under eight on two cores)
	$(BIN)/python -m pytest -m soak -n 2 --dist worksteal -p no:randomly

gpu-check: setup ## The device tests again on a real NVIDIA GPU; says what it skipped, and fails where there is none
	$(BIN)/python -m pytest tests/real_gpu -m real_gpu -v -rs -p no:randomly -p no:xdist

chaos: setup ## 5,000 jobs while workers, runners, server and up are killed (about twelve minutes; CHAOS="--seed 7")
	PYTHONPATH=tests $(BIN)/python -m chaos --jobs 5000 $(CHAOS)

check: setup ## Lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup $(VENV)/.bench ## Measure what all costs, as ratios in one run (eight minutes; BENCH="--quick calls depth", --json)
	$(BIN)/python -m benchmarks $(BENCH)

$(VENV)/.bench: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@touch $@

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist

.PHONY: help setup demo test test-server soak gpu-check chaos check bench clean
