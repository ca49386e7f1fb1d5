# Tidemark. A bare `make` prints the targets.
PYTHON ?= python3
BIN := .venv/bin
LOCKS := requirements-build.lock requirements.lock
WORKERS ?= 2
# pytest, which tries a red test once more, alone: artifacts/flaky.json lists those that were green then.
RUN := $(BIN)/python -m tests.run
# A file to a worker, and all that needs Spark to one (tests/conftest.py), in the order of the conftest.
SPREAD := --dist loadgroup --no-loadscope-reorder
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test browser promtool rsyslog test-quick test-faults faketime check format soak age bench docs lock lock-jars clean

help:  ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/.installed  ## Install everything this project needs (about a second when nothing changed)
	@$(BIN)/tidemark version >/dev/null 2>&1 || { echo "The environment in .venv does not run (was the folder moved?). Remove it with: rm -r .venv"; exit 1; }
	@$(BIN)/tidemark jars

.venv/.installed: $(LOCKS) pyproject.toml infra/version.py
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on PATH. Install Python 3.11 or newer, or run make PYTHON=<path>."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) --version); Tidemark needs 3.11 or newer. Run make PYTHON=<path>."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || rm -rf .venv
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) has no venv module. Debian: apt-get install python3-venv."; exit 1; }
	@echo "Installing the locked packages into .venv (two minutes the first time: pyspark is large) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## Start everything, send events, run a batch, and compare each answer with a recompute (ONCE=1: end by itself)
	@$(BIN)/tidemark demo $(if $(ONCE),--once)

test: setup browser promtool  ## Run every test but the fault programme, on real Kafka, Redis and Spark, in a real browser (WORKERS=2 at a time)
	@$(RUN) --name test -- -n $(WORKERS) $(SPREAD) --ignore tests/torture

test-faults: setup faketime  ## Inject one fault of each kind, and hold five broken builds against the programme (at most 8 minutes)
	@$(RUN) --name faults -- tests/torture/test_programme.py
	@$(RUN) --name sabotages -- tests/torture/test_sabotage.py

faketime:  ## For the fault programme: libfaketime and a C compiler, from the packages of Debian where we may install it
	@[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || apt-get install -y -qq --no-install-recommends libfaketime $$(command -v cc >/dev/null || echo gcc libc6-dev) >/dev/null 2>&1 || echo "No libfaketime: clocks stay right."

browser:  ## For tests: Chromium, from the packages of Debian where we may install it; or TIDEMARK_CHROMIUM names one
	@[ -n "$${TIDEMARK_CHROMIUM:-}" ] || command -v chromium >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo "Installing Chromium for the tests of the dashboard ..."; \
	    { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1; }; \
	} || echo "There is no chromium on PATH: the tests in tests/browser will say so and fail."

PROMTOOL := .venv/share/prometheus
promtool: setup  ## For tests: promtool, unpacked from Debian's package of Prometheus, which is not installed; no service starts
	@command -v promtool >/dev/null || [ -x $(PROMTOOL)/usr/bin/promtool ] || { \
	  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && mkdir -p $(PROMTOOL) && ( cd $(PROMTOOL) && \
	    { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >/dev/null 2>&1 && \
	    dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb ); \
	} || echo "There is no promtool: the rules for Prometheus are parsed and compared, but not tried."

RSYSLOG := .venv/share/rsyslog
rsyslog: setup  ## For soak tests: rsyslogd, unpacked from Debian's packages, which are not installed; no service starts
	@command -v rsyslogd >/dev/null || [ -x $(RSYSLOG)/usr/sbin/rsyslogd ] || { \
	  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && mkdir -p $(RSYSLOG) && ( cd $(RSYSLOG) && \
	    { apt-get download -qq rsyslog libestr0 libfastjson4 || { apt-get update -qq && apt-get download -qq rsyslog libestr0 libfastjson4; }; } >/dev/null 2>&1 && \
	    for each in *.deb; do dpkg-deb -x $$each . && rm -f $$each; done ); \
	} || echo "There is no rsyslogd: the tests that forward by it say so and are skipped."

test-quick: setup  ## Run the unit tests and the laws, which start no process and open no port (90 seconds)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not soak and not process' tests/unit tests/laws

check: setup  ## Check style, types, import directions, and that the docs are in step
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q tests/unit/test_docs.py

format: setup  ## Format the code and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

soak: setup faketime browser promtool rsyslog  ## Hours, before a release: soak tests, fuzzed requests, all broken builds, the long fault programme, 60 simulated nights (SHOTS=700, MINUTES=180, SEED=)
	@mkdir -p artifacts; rm -f artifacts/sabotages/sabotages.json; failed=; \
	SOAK=1 $(RUN) --name soak --again=-m --again= -- -m '' -n $(WORKERS) $(SPREAD) --ignore tests/torture || failed+=" tests-at-length"; \
	$(BIN)/python -m tests.torture.all_sabotages artifacts/sabotages || failed+=" broken-builds"; \
	$(BIN)/tidemark torture --shots $(or $(SHOTS),700) --minutes $(or $(MINUTES),180) $(if $(SEED),--seed $(SEED)) --report artifacts/torture.html --sabotages artifacts/sabotages/sabotages.json || failed+=" fault-programme"; \
	$(BIN)/python -m torture.age --nights 60 --minutes 15 --report artifacts/age-60.md || failed+=" ageing"; \
	[ -z "$$failed" ] || { echo "Failed:$$failed"; exit 1; }

age: setup  ## Two years of nightly operation with an upgrade, and whether anything grows (NIGHTS=730, LIMIT=90 minutes)
	@$(BIN)/python -m torture.age --nights $(or $(NIGHTS),730) --minutes $(or $(LIMIT),90)

bench: setup  ## Measure, and write the figures into benchmarks/results
	@for each in benchmarks/bench_*.py; do \
	[ $$each = benchmarks/bench_speed.py ] && options=--peers || options=; $(BIN)/python $$each $$options; done

docs: setup  ## Write the generated pages: settings and commands
	@$(BIN)/python -m tidemark.reference_pages

lock: .venv/.installed  ## For developers: resolve pyproject.toml into the lock files again
	@$(BIN)/python -m pip install --quiet --target .venv/lock-tool 'uv>=0.13,<0.14'
	@PYTHONPATH=.venv/lock-tool .venv/lock-tool/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --allow-unsafe requirements-build.in -o requirements-build.lock
	@PYTHONPATH=.venv/lock-tool .venv/lock-tool/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --allow-unsafe --extra dev pyproject.toml -o requirements.lock
	@PYTHONPATH=.venv/lock-tool .venv/lock-tool/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --allow-unsafe --constraint requirements.lock pyproject.toml -o requirements-run.lock

lock-jars: .venv/.installed  ## For developers: write infra/java/jars.sha256 again from infra/java/ivy.xml
	@$(BIN)/tidemark jars --relock

clean:  ## Remove what was built and installed here (homes and the jar cache stay)
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts
