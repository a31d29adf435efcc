# Two commands need nothing but make and python3: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test check interop bench verify-aws clean

# With --with-java it finds the jars that `make interop` has brought, or brings them.
demo: export JAVA_KCL_CACHE ?= $(CURDIR)/.cache/java
demo: $(VENV)/.demo
	@echo "# to see it on a web page, too: make demo ARGS=--ui"
	$(BIN)/pykcl demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# Lint, types, docs, and the suite with its slow tests on every Python found. What takes longer: tox -e sim, mutants, conformance, chaos, interop.
check: $(VENV)/.dev
	$(BIN)/tox $(ARGS)

# With real Java workers, two files at a time: the fixtures of a file are made once, and the longest file comes early. Their jars come through Maven, amazon_kclpy through pip, aws-kcl through npm into .cache the first time.
interop: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --java tests/interop $(ARGS)

# All tables and pictures. Peers come through pip and Maven into .cache the first time; what cannot be had is skipped, and told.
bench: export JAVA_KCL_CACHE ?= $(CURDIR)/.cache/java
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

# In an AWS account: ARGS="--region eu-west-1". Says what it makes and costs, asks, and removes it again: docs/about/verification.md.
verify-aws: $(VENV)/.dev
	$(BIN)/python tests/verify_aws $(ARGS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { echo "python3 cannot make virtual environments here; on Debian: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
