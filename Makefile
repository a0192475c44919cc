# Two commands on a fresh machine: `make run` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --durations=20

.PHONY: run test test-ci test-all lint format clean

run: .venv/run
	@$(BIN)/s2sjax train experiments/g2p.py

# Three tiers: minutes; what a change must pass (.ci/run); and what is too long for every change, with random seeds.
test: .venv/dev
	@$(PYTEST) -m "not slow and not exhaustive"

test-ci: .venv/dev
	@$(PYTEST) -m "not exhaustive"

test-all: .venv/dev
	@S2SJAX_TEST_RANDOM=1 $(PYTEST)

lint: .venv/dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: .venv/dev
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

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

.venv/dev: .venv/python pyproject.toml constraints.txt
	@echo "installing s2sjax and its test tools into .venv: a minute or two, once"
	@$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@ .venv/run
