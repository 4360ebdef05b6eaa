# The verbs of the house; `make` alone lists them. CI calls the same ones.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-to-run
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PROTOS := $(wildcard proto/seedance/v2/*.proto)
PORT ?= 8080

.PHONY: help install up test profile bench bench-engine bench-gpu bench-hop bench-litellm bench-metering bench-routing bench-sessions bench-short bench-tcp bench-tenants bench-workers chaos clean fmt fuzz lint proto proto-check simulate test-compose test-equality test-heavy test-postgres types

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Everything into .venv, exact versions from constraints.txt

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python # what `make up` needs, no more
	@echo 'installing into $(VENV), once: some minutes, of which torch takes most'
	@$(PIP) --editable '.[all]'
	@touch $@

$(STAMP): $(RUN_STAMP)
	@echo 'installing what development needs into $(VENV), once'
	@$(PIP) --editable '.[dev]'
	@touch $@

up: $(RUN_STAMP) ## The whole mesh on this machine, a real model answering on PORT (8080)
	@exec $(BIN)/seedance up --port $(PORT)

test: $(STAMP) ## Unit, property, contract, simulation, integration, end-to-end and browser tests
	$(BIN)/python -m tests.levels

lint: $(STAMP) proto-check ## ruff, import-linter, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

fmt: $(STAMP) ## Format and repair what can be repaired
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(STAMP) ## Generate seedance/v2 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

proto-check: $(STAMP) # the committed stubs are what proto/ says
	@rm -rf build/proto && mkdir -p build/proto
	@$(BIN)/python -m grpc_tools.protoc -I proto --python_out=build/proto --pyi_out=build/proto --grpc_python_out=build/proto $(PROTOS)
	@for f in build/proto/seedance/v2/*; do diff -q $$f seedance/v2/$$(basename $$f) || { echo "seedance/v2 is not what proto/ says: make proto"; exit 1; }; done

bench: $(STAMP) ## What each station on a token's way costs, and the hop beside its targets (ten minutes)
	$(BIN)/python -m launcher.bench
	$(BIN)/python -m launcher.bench.targets $(ARGS)

bench-hop: $(STAMP) ## The hop beside its targets alone (ARGS: --parts latency,memory --json FILE)
	$(BIN)/python -m launcher.bench.targets $(ARGS)

bench-short: $(STAMP) ## Has a token become dearer than baseline.json says? Under a minute (ARGS: --write)
	$(BIN)/python -m launcher.bench.short $(ARGS)

profile: $(STAMP) ## What a token costs a real gateway, beside nginx; ARGS='--profile FILE' for py-spy's samples
	$(BIN)/python -m launcher.bench.hop $(ARGS)

LITELLM ?= /tmp/seedance-litellm
bench-litellm: $(STAMP) ## LiteLLM's proxy beside ours, the same upstream; installs it into LITELLM (/tmp/…)
	@[ -x $(LITELLM)/bin/litellm ] || { $(PYTHON) -m venv $(LITELLM) && $(LITELLM)/bin/python -m pip install --quiet 'litellm[proxy]'; }
	$(BIN)/python -m launcher.bench.proxies --litellm $(LITELLM)/bin/litellm $(ARGS)

bench-engine: $(STAMP) ## Our mesh beside llama-cpp-python and transformers (ARGS: see docs/benchmarks.md)
	$(BIN)/python -m launcher.bench.peers $(ARGS)

bench-tcp: $(STAMP) ## How late frames arrive with and without Nagle, and by the send buffer's size (root: also far away)
	$(BIN)/python -m launcher.bench.tcp

bench-routing: $(STAMP) ## How evenly and faithfully keys find their instances, and what a choice costs
	$(BIN)/python -m launcher.bench.routing

bench-sessions: $(STAMP) ## What the death of a process, a slow reader and a checkpoint cost (half an hour)
	$(BIN)/python -m launcher.bench.sessions

bench-workers: $(STAMP) ## What a second worker on a gateway's port is worth: a minute (ARGS: --token-ms 0)
	$(BIN)/python -m launcher.bench.workers $(ARGS)

bench-tenants: $(STAMP) ## Are tenants' weights kept, and does one tenant's noise reach another? Two minutes
	$(BIN)/python -m launcher.bench.tenants $(ARGS)

RUNS ?= 100
chaos: $(STAMP) ## Break the mesh RUNS times (100), of ENGINE script or native; SEED and KINDS as printed
	$(BIN)/python -m tests.chaos --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) $(if $(ENGINE),--engine $(ENGINE))

N ?= 100000
fuzz: $(STAMP) ## N requests, messages and connections (100,000) that no client should send; SEED as printed
	$(BIN)/python -m tests.fuzz --examples $(N) $(if $(SEED),--seed $(SEED))

bench-gpu: $(STAMP) ## On a GPU: the same words as transformers? how fast? Under five minutes
	$(BIN)/python -m launcher.bench.gpu

EQUALITY := tests/heavy/test_equality_full.py tests/heavy/test_same_tokens_full.py tests/heavy/test_quantize_divergence.py

test-equality: $(STAMP) ## Token by token: 20 prompts against transformers, 100,000 tokens in any company
	$(BIN)/python -m pytest $(EQUALITY)

test-heavy: $(STAMP) ## The other long runs: random lives of the engine, 1,000 cancellations, a drain, tenants
	$(BIN)/python -m pytest -s $(addprefix --ignore ,$(EQUALITY)) tests/heavy

bench-metering: $(STAMP) ## N usage events (1,000,000) through the real pipeline, everything failing once; SEED
	$(BIN)/python -m launcher.bench.metering --events $(or $(N),1000000) $(if $(SEED),--seed $(SEED))

test-postgres: $(STAMP) ## The ledger on a real PostgreSQL of its own (Debian: apt-get install postgresql)
	$(BIN)/python -m tests.support.postgres $(BIN)/python -m pytest tests/integration/test_ledger_postgres.py

simulate: $(STAMP) ## 10,000 runs of the mesh on virtual time with faults; SEED=1234 plays one with its trace
	$(BIN)/python -m tests.simulation $(if $(SEED),$(SEED) --trace,--seeds $(or $(SEEDS),10000))

test-compose: $(STAMP) ## docker compose up answers (needs a Docker engine)
	$(BIN)/python -m pytest -m compose tests/e2e

clean: ## Remove what can be made again
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
