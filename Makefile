PYTHON ?= python3
BIN := .venv/bin
# Where mmcv's operators come from: auto, compiled or torchvision.
OPS ?= auto

.PHONY: help setup test test-long test-cuda other-models lint demo benchmark wheel
.PHONY: clean deploy-benchmark
help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup:  ## create .venv/ with pinned versions, about 5 minutes the first time
	@$(PYTHON) requirements/setup_env.py --ops $(OPS) $(if $(TORCH),--torch $(TORCH))

test: lint  ## run the linters and the tests, 8 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: setup  ## run the long versions of the tests, 33 minutes on 2 cores: kills, memory, 11,000 cases
	$(BIN)/python -m pytest -m long -n 2 --dist worksteal

test-cuda: setup  ## run the tests that need a GPU
	$(BIN)/python -m pytest -m cuda

lint: setup  ## run ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: setup  ## train, evaluate and show two models on drawn images, 10 minutes (QUICK=1: 3)
	$(BIN)/xcit-mm demo $(if $(QUICK),--quick)

benchmark: setup  ## measure speed and memory against other backbones, 27 minutes (QUICK=1: first rows, 5)
	$(BIN)/python -m dev.benchmark $(if $(QUICK),--quick --out-dir work_dirs/benchmark) \
		$(if $(DEVICE),--device $(DEVICE))

deploy-benchmark: setup  ## measure exported models against PyTorch; tables of docs/studies/deploy.md, half an hour
	$(BIN)/python -m dev.deploy_benchmark $(if $(QUICK),--quick --demo work_dirs/deploy_quick \
		--out-dir work_dirs/deploy_quick)

other-models: setup  ## try the backbone in 27 models of mmdet and mmseg, 2 minutes
	$(BIN)/python -m dev.other_models

wheel:  ## build dist/xcit_mm-VERSION-py3-none-any.whl, for an installation with pip alone
	rm -rf build dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove .venv/ and everything that was built (not work_dirs/, not data/)
	rm -rf .venv .setup.log build dist *.egg-info xcit_mm/.mim .mypy_cache .ruff_cache .pytest_cache
