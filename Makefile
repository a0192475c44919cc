# Two commands on a fresh machine: `make run` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# The number of test processes: make test WORKERS=4, for example.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --durations=20

# The variable silences a notice that has nothing to do with this build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# Dozens of test processes import s2sjax: its bytecode is compiled once, not by each of them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-ci test-all test-tpu test-gpu test-beam notebooks docs docs-serve bench bench-gpu claims lint format clean

# Two CPU devices train two halves of each batch: products of this size keep one core busy, not two.
run: .venv/run
	@JAX_NUM_CPU_DEVICES=2 $(BIN)/s2sjax train experiments/g2p.py
	@$(BIN)/s2sjax report runs/g2p --attention 1000
	@echo "to train longer, with fewer errors: $(BIN)/s2sjax train experiments/g2p.py --train.steps 4500 --out runs/g2p-4500"

# Three tiers: minutes; what a change must pass (.ci/run); and what is too long for every change, with random seeds.
test: .venv/dev
	@$(PYTEST) -m "not slow and not exhaustive"

test-ci: .venv/dev
	@$(PYTEST) -m "not exhaustive"

test-all: .venv/dev
	@S2SJAX_TEST_RANDOM=1 $(PYTEST)

# The laws of programs for TPUs, by the TPU compiler, without a TPU: x86-64 Linux. About ten minutes on 2 cores.
test-tpu: .venv/tpu
	@$(PYTEST) --dist load --timeout 1200 tests/test_tpu.py

# The laws on a GPU, and the Pallas kernels as it compiles them. About ten minutes on an H200, a minute when repeated.
test-gpu: .venv/gpu-dev
	@$(BIN)/python -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' || \
	  { echo "JAX finds no GPU here: s2sjax doctor says what to install"; exit 2; }
	@JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false $(PYTEST) -n 8 $(addprefix tests/,test_gpu.py core/attention/test_decode_kernel.py core/attention/test_short_sequence_kernel.py core/mixers/test_chunk_kernels.py)

# prepare --beam, in an environment of its own: Apache Beam needs older versions of three packages than constraints.txt
# names. Five minutes, two when repeated.
test-beam: .venv/beam/installed
	@.venv/beam/bin/python -m pytest --durations=20 tests/data/test_beam.py tests/object_storage/test_beam.py

# Executes every notebook afresh on the CPU; notebooks/execute.py --write also stores the new outputs.
notebooks: .venv/dev
	@$(BIN)/python notebooks/execute.py

# Builds docs/ and the docstrings into site/; a broken link is an error, but not with -q, which
# hides it from --strict. docs-serve shows the site and follows what you edit.
docs: .venv/dev
	@$(MKDOCS) build --strict && echo "wrote site/: open site/index.html"

docs-serve: .venv/dev
	@$(MKDOCS) serve

# Each benchmark one after the other, with its output, CSV and JSON in one folder. See docs/benchmarks.md.
bench: .venv/run
	@$(call benchmarks,small,runs/bench/cpu)

bench-gpu: .venv/gpu
	@$(BIN)/python -c 'import jax, sys; sys.exit(jax.default_backend() == "cpu")' || \
	  { echo "JAX finds no accelerator here: s2sjax doctor says what to install; make bench measures the CPU"; exit 2; }
	@$(call benchmarks,base,runs/bench/gpu)

OTHERS := torch transformers ctranslate2
define benchmarks
$(BIN)/python -c 'import $(firstword $(OTHERS))' 2> /dev/null || \
  echo "to compare with other libraries: $(BIN)/pip install $(OTHERS)"; \
mkdir -p $(2) && set -o pipefail && \
$(BIN)/s2sjax bench layers --out $(2)/layers 2>&1 | tee $(2)/layers.txt && \
$(BIN)/s2sjax bench train --size $(1) --out $(2)/train 2>&1 | tee $(2)/train.txt && \
$(BIN)/s2sjax bench decode --size $(1) --out $(2)/decode 2>&1 | tee $(2)/decode.txt && \
$(BIN)/s2sjax bench sweep --size $(1) --out $(2)/sweep 2>&1 | tee $(2)/sweep.txt && \
$(BIN)/s2sjax bench data 2>&1 | tee $(2)/data.txt
endef
bench bench-gpu: SHELL := /bin/bash

# Each claim one after the other; what is measured already is not measured again. See docs/claims.md.
CLAIMS := length fibonacci gradients reversal beam units table1 cost alignment pretraining mixers statistical
SIZE ?= small
claims: .venv/run
	@for claim in $(CLAIMS); do $(BIN)/python experiments/claims/$$claim.py --size $(SIZE) || exit; done

lint: .venv/dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: .venv/dev
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .venv runs build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "s2sjax needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	@echo "making .venv"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/run: .venv/python pyproject.toml constraints.txt
	@echo "installing s2sjax into .venv: a minute or two, once"
	@$(PIP) install -c constraints.txt -e ".[g2p]"
	@touch $@

.venv/gpu: .venv/run
	@echo "installing JAX for NVIDIA GPUs into .venv: a few minutes, once"
	@$(PIP) install -c constraints.txt -e ".[g2p,gpu]"
	@touch $@

.venv/gpu-dev: .venv/dev
	@echo "installing JAX for NVIDIA GPUs into .venv: a few minutes, once"
	@$(PIP) install -c constraints.txt -e ".[dev,gpu]"
	@touch $@ .venv/gpu

.venv/tpu: .venv/dev
	@echo "installing the TPU compiler into .venv: a minute or two, once"
	@$(PIP) install -c constraints.txt -e ".[dev,tpu]"
	@touch $@

.venv/beam/installed: .venv/python pyproject.toml constraints.txt
	@echo "installing s2sjax, its test tools and Apache Beam into .venv/beam: a few minutes, once"
	@$(PYTHON) -m venv .venv/beam
	@grep -vE '^(beartype|pillow|pyarrow)==' constraints.txt > .venv/beam/constraints.txt
	@.venv/beam/bin/python -m pip --disable-pip-version-check -qq install -c .venv/beam/constraints.txt -e ".[dev,beam]"
	@touch $@

.venv/dev: .venv/python pyproject.toml constraints.txt
	@echo "installing s2sjax and its test tools into .venv: a minute or two, once"
	@$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@ .venv/run
