# Every command sets up .venv first where that has not been done.
PYTHON ?= python3
PIP_FLAGS ?=
JOBS ?= 2
DEVICE ?= cpu
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.onetrip-installed

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test check lint conformance golden bench docs

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "onetrip needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) -V 2>&1`." \
	         "Name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[dev,onnx,explore]'
	@touch $@

setup: $(STAMP)  ## Make .venv and install onetrip into it (PIP_FLAGS: more flags for pip)

browser:  ## Install Debian's Chromium where it is missing, for the tests of the explorer's page
	@command -v chromium >/dev/null || \
	  { test "`id -u`" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
	    apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } || \
	  echo "No Chromium: the tests of the explorer's page are skipped (apt-get install chromium)"

demo: $(STAMP)  ## Plan, compile and run a small model, with every boundary explained
	$(BIN)/onetrip demo

lint: $(STAMP)  ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint  ## lint and the fast tests, two minutes
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow and not exhaustive"

test: lint browser  ## lint and every test but the exhaustive ones
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not exhaustive" --durations 20

conformance: $(STAMP)  ## The exhaustive tests: every small graph's plan, PyTorch's own operator tests
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m exhaustive
	$(BIN)/python tests/conformance/opinfo_run.py --jobs $(JOBS) --write

golden: $(STAMP)  ## Rewrite the golden texts that the tests compare with; read the diff
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m golden --update-golden

bench: $(STAMP)  ## Measure beside eager and torch.compile (DEVICE=cpu|cuda) into benchmarks/results/
	$(BIN)/onetrip bench blocks --device $(DEVICE) --out benchmarks/results
	$(BIN)/onetrip bench models --device $(DEVICE) --out benchmarks/results
	$(BIN)/python benchmarks/tables.py

docs: $(STAMP)  ## Rewrite the generated parts of the documents
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python docs/generate.py
