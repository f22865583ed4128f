# `make run` shows the product, `make test` tests it. Everything lives in .venv and .tools; each step does nothing when
# it was done before. PYTHON=python3.12 picks the interpreter, ARGS="-k lease" adds arguments for pytest.
PYTHON ?= python3
WORKERS ?= 2
ARGS ?=
export PYTHON

PYTEST = scripts/with-tools .venv/bin/pytest
# A worker that crashed is not replaced: the scheduler would wait for ever for what that one had still to run.
BESIDE = -n $(WORKERS) --dist loadfile --max-worker-restart 0

.PHONY: run test slow slow-beside slow-alone again check format reference torch frames rivals install-systemd uninstall-systemd clean

run:
	@scripts/install
	@.venv/bin/cachedaemon demo

test:
	@scripts/install dev
	@scripts/tools
	@$(PYTEST) $(BESIDE) -m "not slow" $(ARGS)

slow: slow-beside slow-alone

slow-beside:
	@scripts/install dev
	@scripts/tools
	@$(PYTEST) $(BESIDE) -m "slow and not alone" --timeout 900 $(ARGS)

slow-alone:
	@scripts/install dev
	@scripts/tools
	@$(PYTEST) -m alone --timeout 900 $(ARGS)

again:
	@$(PYTEST) --last-failed --last-failed-no-failures none --timeout 900

check:
	@scripts/install dev
	.venv/bin/ruff format --check --quiet .
	.venv/bin/ruff check --quiet .
	.venv/bin/mypy
	.venv/bin/mypy --python-version 3.10 client/cachedaemon_client
	.venv/bin/lint-imports --no-logo

format:
	@scripts/install dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix-only --quiet .

# docs/reference, from the code.
reference:
	@scripts/install dev
	@.venv/bin/python scripts/reference.py

torch:
	@scripts/install dev torch

frames:
	@scripts/install dev frames

# Loaders of others, each in an environment of its own, and the same data read by each: several minutes.
rivals:
	@scripts/install dev torch
	@scripts/rivals
	@.venv/bin/python bench/rivals.py

# The service's user must reach the interpreter, so the default is the system's own.
install-systemd:
	@PYTHON=$(if $(filter file,$(origin PYTHON)),/usr/bin/python3,$(PYTHON)) scripts/systemd install

uninstall-systemd:
	@scripts/systemd uninstall

clean:
	rm -rf .venv .tools .demo build client/build *.egg-info client/*.egg-info
