# Two commands do all the set-up on a fresh machine with Python >= 3.10: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
COMMA := ,
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SAMPLE := samples/crash_dumps/ack_skew-0.5.12.post1/input
JOBS ?= 2
# Installed before the extra `runtime`, so that a chosen build (a CPU one, your image's) stays; empty: tests without torch.
TORCH ?= torch==2.13.0
# A package to test the Mooncake backend with; needs libibverbs1. Empty: those tests are skipped.
MOONCAKE ?=

.PHONY: demo test long matrix lint clean

demo: $(VENV)/.core
	$(BIN)/hicache-doctor analyze $(SAMPLE)

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n $(JOBS) -m "not long"

long: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) -m long
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/runtime.py
	$(if $(TORCH),$(BIN)/python benchmarks/processes.py)
	$(BIN)/python benchmarks/flight_recorder.py --full
	$(BIN)/python benchmarks/logscan.py --full

# Every known incident, made and diagnosed: the rule × fault matrix. With torch also: make matrix ARGS="--world processes".
matrix: $(VENV)/.dev
	$(BIN)/python -m hicache_doctor.matrix $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hicache-doctor rules check

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The core: no torch, enough for analyze, query, kb and rules.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(if $(TORCH),$(PIP) $(TORCH))
	$(if $(MOONCAKE),$(PIP) $(MOONCAKE))
	$(PIP) -e '.[dev$(if $(TORCH),$(COMMA)runtime)]'
	touch $(VENV)/.core $@

clean:
	rm -rf $(VENV) dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
