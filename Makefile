# Two commands set everything up by themselves: `make demo` and `make test`.
# They need Python 3.11 (or newer) and make; PYTHON=... names another interpreter.

PYTHON ?= python3.11
VENV := .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin
PYTEST := $(RUN)/pytest -q -n 2
# All tests pass with compression on; these go through all that it touches.
COMPRESSED := tests/sync tests/torch/test_round_trip.py tests/torch/test_reader.py
BENCH := .venv-bench

.PHONY: setup demo test check bench bench-smoke servers-up servers-down fmt
.PHONY: lint types layers unit conformance faults distributed integration soak clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	$(RUN)/python -m localstack.demo $(ARGS)

# Everything. Starts the servers that it needs, and stops them.
test: check bench-smoke integration

# Everything that needs no server and no network.
check: lint types layers
	$(PYTEST) tests --ignore=tests/integration
	CKPTSTORE_COMPRESS=1 $(PYTEST) $(COMPRESSED)

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(READY)
	$(RUN)/mypy

layers: $(READY)
	$(RUN)/lint-imports

unit: $(READY)
	$(PYTEST) tests/unit tests/model tests/gc tests/sync tests/cli tests/test_tidy.py

conformance faults: $(READY)
	$(PYTEST) tests/$@

distributed: $(READY)
	$(PYTEST) tests/distributed tests/torch tests/crashes

integration: $(READY)
	$(PYTEST) --dist loadfile tests/integration

# Kills and stops real processes that save, TRIALS times on each store; SEED repeats them.
TRIALS ?= 200
SEED ?= $(shell date +%s)
soak: $(READY)
	$(RUN)/python -m tests.crashes.lab --store local --trials $(TRIALS) --seed $(SEED)
	$(RUN)/python -m tests.crashes.lab --store seaweedfs --trials $(TRIALS) --seed $(SEED)

# Everybody that is measured gets an environment of its own, so that nobody pins our versions.
$(BENCH)/.ready: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

# Takes three quarters of an hour, and the machine for itself. ARGS="--only upload" measures less.
bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.scale --ranks 1 16 256 1024 4096 16384 --latency-ms 20 --json benchmarks/results/scale.json
	$(BENCH)/bin/python -m benchmarks full $(ARGS)

bench-smoke: $(READY)
	$(RUN)/python -m benchmarks smoke --no-files

servers-up: $(READY)
	localstack/up.sh

servers-down: $(READY)
	localstack/down.sh

fmt: $(READY)
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	rm -rf $(VENV) .venv-* .servers .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
