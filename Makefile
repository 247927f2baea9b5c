PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup test lint benchmark soak clean
help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup:  ## make .venv/ with everything pinned; does nothing when nothing is missing
	@$(PYTHON) requirements/setup_env.py

test: lint  ## run the linters and all tests
	$(BIN)/python -m pytest

lint: setup  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: setup  ## speed and memory against the peers, 25 minutes (QUICK=1: first rows, 5)
	$(BIN)/python tools/benchmark.py $(if $(QUICK),--quick --out-dir work_dirs/benchmark)

soak: setup  ## inference for 30 minutes (MINUTES=n): nothing fails, changes or grows
	$(BIN)/python tools/soak.py --minutes $(or $(MINUTES),30)

clean:  ## remove .venv/ and everything that was built (not work_dirs/, not data/)
	rm -rf .venv .setup.log build dist *.egg-info xcit_mm/.mim .mypy_cache .ruff_cache .pytest_cache
