# hisearch: a bare `make` explains the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What running needs, and what tests and tools need besides.
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev
# Modules compiled once are kept, also where the environment says otherwise, as images of containers often do: tests start
# many processes, each of which would compile a thousand of them.
export PYTHONDONTWRITEBYTECODE :=
# Where measured runs, recordings and traces lie.
SHARED ?= $(HISEARCH_SHARED)

# Installs by uv, which takes a third of pip's time; by pip where an index of one's own is configured, which uv would not
# ask, or where uv does not get on. A module is compiled when it is used.
PIP := $(BIN)/python -m pip
PIP_INSTALL := $(PIP) install --quiet --disable-pip-version-check --no-compile
define install
	@if ! $(PIP) config list | grep -qE '\.(no-)?index(-url)?=' && $(PIP_INSTALL) 'uv>=0.4'; then \
		$(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || $(PIP_INSTALL) $(1); \
	else $(PIP_INSTALL) $(1); fi
endef

# Compiles what is not compiled yet, as many parts at once as there are cores.
PREPARE := from hisearch.kernels.engine.engine_calls import ENGINES; from hisearch.kernels.fleet.compilation import prepare; prepare(ENGINES)

.DEFAULT_GOAL := help
.PHONY: help quickstart wheel test test-slow test-engines test-serving lint format docs site bench prove-search agents accuracy hardware profiles clean

help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "hisearch needs Python 3.11 or later; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv $(VENV)
	$(call install,-e .)
	@touch $@

$(STAMP): $(INSTALLED)
	$(call install,-e '.[dev]')
	@touch $@

quickstart: $(INSTALLED) ## Set up, then recommend a deployment for a chat service (a minute; a few the first time)
	$(BIN)/hisearch run studies/quickstart.yaml

wheel: $(INSTALLED) ## Build dist/hisearch-*.whl with kernels compiled for this kind of machine (two minutes)
	$(BIN)/python release/build_wheel.py

test: $(STAMP) ## Set up, then run what a change can break in a normal day
	@$(BIN)/python -c '$(PREPARE)'
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -q -m "not slow"

test-slow: $(STAMP) ## Run the rest: slow tests, and every property test at ten times as many examples (all: HISEARCH_FULL=all)
	@$(BIN)/python -c '$(PREPARE)'
	HISEARCH_FULL=$(or $(HISEARCH_FULL),1) $(BIN)/python -m pytest -n auto --dist worksteal -q -m "slow or property"

test-engines: $(STAMP) ## Install the modelled engines (7 GB, no GPU); 40 fresh cases of each and its parser against hisearch (half an hour)
	$(BIN)/python tests/engines/record_and_compare.py

test-serving: $(STAMP) ## Install vLLM for CPUs (2 GB), serve a tiny model with an exported command, calibrate and predict (a quarter of an hour)
	HISEARCH_SERVING=1 $(BIN)/python -m pytest -q -rs -s tests/serving

lint: $(STAMP) ## Format check, lint, types; quick tables of docs/agents.md and docs/hardware.md
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python docs/generate_agents.py --check
	$(BIN)/python docs/generate_hardware.py --check

format: $(STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Write docs/specs.md, reference.md, engines.md, python.md and tables of policies from models, command line, rules and declarations
	$(BIN)/python docs/generate_specs.py --write
	$(BIN)/python docs/generate_cli.py --write
	$(BIN)/python docs/generate_engines.py --write
	$(BIN)/python docs/generate_python.py --write
	$(BIN)/python docs/generate_policies.py --write

site: $(STAMP) ## Build the documentation site into build/site/VERSION (SITE_VERSION=NAME), without a warning
	$(BIN)/python docs/build_site.py $(SITE_VERSION)

bench: $(STAMP) ## Measure speed, write the tables of docs/performance.md (TRACE=FILE: Mooncake's conversation trace)
	$(BIN)/python docs/generate_performance.py --write $(if $(TRACE),--trace $(TRACE))

prove-search: $(STAMP) ## Hold the search against an enumerated space and flat samplers, write its note's tables (an hour)
	$(BIN)/python benchmarks/prove_search.py --write

agents: $(STAMP) ## Simulate populations of agents, write the tables of docs/agents.md and its note
	$(BIN)/python docs/generate_agents.py --write

accuracy: $(STAMP) ## Run its tests, write docs/accuracy.md and its details (SHARED=FOLDER: measured data; REFIT=1)
	HISEARCH_SHARED=$(SHARED) $(BIN)/python -m pytest -q tests/accuracy
	$(BIN)/python docs/generate_accuracy.py --write $(if $(SHARED),--shared $(SHARED)) $(if $(REFIT),--refit)

hardware: $(STAMP) ## Compute the tables and figures of docs/hardware.md (needs Chromium)
	$(BIN)/python docs/generate_hardware.py --write

profiles: $(STAMP) ## Refit the shipped latency profiles (aiconfigurator-core, or TABLES=FOLDER of it; FORMER=FOLDER: 0.8.0)
	$(BIN)/python -m refit profiles profiles/latency $(if $(TABLES),--tables $(TABLES)) $(if $(FORMER),--former $(FORMER))

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
