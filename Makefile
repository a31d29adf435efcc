# Two commands need nothing but make and python3: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test check interop bench verify-aws clean

# With --with-java it uses the jars that `make interop` has downloaded, or downloads them.
demo: export JAVA_KCL_CACHE ?= $(CURDIR)/.cache/java
demo: $(VENV)/.demo
	@echo "# for a web page: make demo ARGS=--ui"
	$(BIN)/pykcl demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# Lint, types, docs, and the suite with its slow tests on each installed Python. Longer runs: tox -e sim, mutants, conformance, chaos, interop.
check: $(VENV)/.dev
	$(BIN)/tox $(ARGS)

# With real Java workers, four tests at a time, the longest first: they wait most of their time. The first run downloads their jars through Maven, amazon_kclpy through pip and aws-kcl through npm into .cache. ARGS=--long: fleets of KCL 3.x's own mode in full length, an hour and more.
interop: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder --java tests/interop $(ARGS)

# All tables and pictures. The first run downloads the peers through pip and Maven into .cache; unavailable peers are skipped and listed.
bench: export JAVA_KCL_CACHE ?= $(CURDIR)/.cache/java
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

# In an AWS account: ARGS="--region eu-west-1". Lists what it creates and the cost, asks, and deletes it again: docs/about/verification.md.
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
