# make train | test | nightly | upstream | clusters | gpu | lint | docs | help; all of them set the environment up first.

PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/installed
# The launchers are started by name.
export PATH := $(BIN):$(PATH)
# Several processes share the cores; more threads in each only get in each other's way.
train test nightly clusters gpu upstream: export OMP_NUM_THREADS ?= 1
# Otherwise each process of each test would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Of `make train`: one on a machine with one GPU, else two; without a GPU they rehearse on the CPU.
PROCESSES ?= $(shell $(BIN)/python -c "import torch; print(min(torch.cuda.device_count(), 2) or 2)")

.PHONY: help setup train test nightly upstream clusters gpu gpu-wheels browser lint docs checked collected
.DEFAULT_GOAL := help

help:
	@echo "make setup    .venv with everything that training and tests need (PYTHON=python3.12 for another Python)"
	@echo "make train    train the digits CNN on one GPU, on two, or on two CPU processes; more settings: ARGS='--epochs 5'"
	@echo "make test     lint, types, the docs and the quick tests"
	@echo "make nightly  the same with the slow tests, and those of tests/upstream"
	@echo "make upstream what other packages do against expectation: run it after an upgrade of them"
	@echo "make clusters the files of examples/clusters on engines set up here (root, Debian packages, some minutes)"
	@echo "make gpu      the tests that need a GPU, and runs/gpu/results.md (DEVICE=cpu rehearses them)"
	@echo "make gpu-wheels  .site: what a GPU machine without a network lacks (docs/gpu.md)"
	@echo "make browser  the tests that need headless Chromium (CHROMIUM=/path/to/it)"
	@echo "make lint     ruff and mypy alone"
	@echo "make docs     the pages and the API reference as a site, in site/"

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[all,dev,examples]'
	touch $@

train: setup
	$(BIN)/accelerate launch --config_file accel_configs/ddp.yaml --num_processes $(PROCESSES) \
		examples/train.py --config examples/configs/digits_cnn.yaml --overwrite $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A file's tests stay together, since they share jobs; four files at a time fill the waits of each other, jobs first.
TESTED_AT_ONCE ?= 4
test nightly: TOGETHER = -n $(TESTED_AT_ONCE) --dist loadfile --no-loadscope-reorder

# Beside each other, for none of them fills two cores. Collecting once leaves compiled tests to all processes.
checked: setup
	$(MAKE) --no-print-directory --jobs 3 lint docs collected

collected: setup
	-@$(BIN)/pytest --collect-only -qq > /dev/null

test: checked
	$(BIN)/pytest $(TOGETHER) --durations=15 -m "not gpu and not slow and not browser and not clusters and not upstream"

nightly: checked
	$(BIN)/pytest $(TOGETHER) --durations=15 -m "not gpu and not browser and not clusters"

upstream: setup
	$(BIN)/pytest -m upstream tests/upstream

clusters: setup
	$(BIN)/pytest -m clusters --durations=0 tests/clusters

gpu: setup
	$(BIN)/pytest -m gpu tests/gpu; code=$$?; \
		$(BIN)/python docs/make_gpu.py runs/gpu/$(if $(filter cpu,$(DEVICE)),rehearsal,results).json; exit $$code

gpu-wheels: setup
	$(BIN)/python benchmarks/gpu_wheels.py

browser: setup
	$(BIN)/pytest -m browser
