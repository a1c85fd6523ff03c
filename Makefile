# `make run` shows the bridge at work, `make test` tests it; both set up what they need and skip what is
# done already. On Debian as root that includes the distribution's packages. `make` alone prints this.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv/bin
# Hundreds of tests start the bridge: it is compiled once, whatever the surroundings prefer.
export PYTHONDONTWRITEBYTECODE :=
WITH_ENGINES := scripts/with-engines
PYTHON_FILES := bridge tests benchmarks scripts packaging

# What PYTEST_ARGS narrows: make test PYTEST_ARGS='tests/gate -k policy'.
PYTEST_ARGS ?=
# A module's tests share one of them. One more than two cores: many tests wait.
WORKERS ?= 3
# A command that runs the tests with something else going on.
BESIDE ?=
# Modules that decide and do no I/O; they keep the floor of branch coverage.
empty :=
space := $(empty) $(empty)
comma := ,
PURE := \
    bridge/artifacts/content.py \
    bridge/store/retention.py \
    bridge/catalog/* \
    bridge/render/* \
    bridge/gate/* \
    bridge/discovery/documents.py \
    bridge/discovery/entries.py \
    bridge/discovery/variables.py \
    bridge/discovery/precedence.py \
    bridge/discovery/parser.py \
    bridge/discovery/self_reference.py \
    bridge/discovery/user_lists.py \
    bridge/runs/input_files.py \
    bridge/runs/collect/picture_formats.py \
    bridge/sessions/record.py \
    bridge/guest/protocol/wire.py \
    bridge/saved_functions/source.py \
    bridge/rpc/* \
    bridge/sandbox/backend.py \
    bridge/sandbox/failure.py \
    bridge/sandbox/layers.py \
    bridge/sandbox/container/faults.py \
    bridge/sandbox/container/hardening.py \
    bridge/server/arguments.py \
    bridge/server/content.py \
    bridge/settings/* \
    bridge/upstream/framing.py \
    bridge/upstream/failure.py \
    bridge/packages/requirements.py \
    bridge/packages/target.py
PURE_MODULES ?= $(subst $(space),$(comma),$(strip $(PURE)))
COVERAGE_FLOOR ?= 90
# Whether it is measured: that takes time, so `make test` does not.
COVERAGE ?=

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up; each script returns at once when there is nothing to do ---------------------------------

.PHONY: packages demo-packages venv node more-clients launchers
packages:
	@scripts/system-packages

# Only what the demonstration needs; the rest comes with the targets that test.
demo-packages:
	@scripts/system-packages demo

venv: demo-packages
	@scripts/venv

node: venv
	@scripts/node-peers

# The clients that only `make test-all` and `make clients` drive: 1.8 GB.
more-clients: node
	@scripts/node-peers tests/clients/node

# Package runners by which only `make test-all` starts servers, servers that it compares, and what one drives: 800 MB.
launchers: node
	@scripts/system-packages chromium
	@scripts/node-peers tests/launchers

.PHONY: install
install: demo-packages venv ## the virtual environment in .venv, with the mcp-code-bridge command
	@echo "Installed: $(VENV)/mcp-code-bridge; its \`doctor\` says where programs can run"

.PHONY: image
image: packages install ## the runtime image, built from Debian packages and imported into the engines for tests
	@$(WITH_ENGINES) true
	@echo "Root filesystem: $$($(VENV)/python scripts/image.py tarball)"

# --- use ---------------------------------------------------------------------------------------------

.PHONY: run
run: demo-packages venv ## the demonstration: real servers, a real sandbox
	@if podman info >/dev/null 2>&1; then $(VENV)/mcp-code-bridge image build --offline; fi
	@$(VENV)/python examples/demo.py

# --- checks ------------------------------------------------------------------------------------------

.PHONY: fmt
fmt: venv ## format the code and fix what can be fixed
	@$(VENV)/ruff format $(PYTHON_FILES)
	@$(VENV)/ruff check --fix $(PYTHON_FILES)

.PHONY: check
check: venv ## format, lint, types, imports, sizes and docstrings, without running anything
	$(VENV)/ruff format --check $(PYTHON_FILES)
	$(VENV)/ruff check $(PYTHON_FILES)
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python scripts/check_sizes.py
	$(VENV)/python scripts/check_docstrings.py
	$(VENV)/python -m scripts.check_prose

# Which of the peers in tests/peers are installed; all if empty.
PEERS ?= node mcp1 fastmcp4

.PHONY: peers
peers: venv
	@scripts/peers $(PEERS)

.PHONY: pytest
pytest: packages venv node peers
	@# A short directory: sockets lie in it, whose paths may have 107 bytes.
	@base=$$(mktemp -d /tmp/mcb.XXXXXX); trap 'rm -rf "$$base"' EXIT; \
	$(WITH_ENGINES) $(BESIDE) $(VENV)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder \
	    --basetemp "$$base/t" --durations 15 $(if $(COVERAGE),--cov --cov-report=) $(PYTEST_ARGS)
	@$(if $(COVERAGE),$(VENV)/coverage report --include="$(PURE_MODULES)" --fail-under=$(COVERAGE_FLOOR))

.PHONY: test
test: ## every check and every test, on real engines and servers
	@$(MAKE) packages venv
	@$(MAKE) check
	@$(MAKE) pytest

.PHONY: test-slow
test-slow: ## the tests of `make test-all` that take seconds each, which continuous integration runs as well
	@$(MAKE) pytest PYTEST_ARGS="-m 'slow and not full and not fleet'"

.PHONY: test-all
test-all: ## as `make test`, with every case of every matrix, 400 examples, coverage and the benchmark
	@$(MAKE) packages venv
	@$(MAKE) check
	@$(MAKE) more-clients launchers
	@$(MAKE) pytest PEERS= COVERAGE=yes PYTEST_ARGS="-m 'not fleet' --hypothesis-profile=full"
	@$(VENV)/python -m benchmarks.compare --measure bubblewrap --noise 0.2

.PHONY: test-fleet
test-fleet: packages venv ## Kubernetes: builds it once, starts two nodes in own namespaces, and lets them fail
	@scripts/fleet/run $(VENV)/python -m pytest -m fleet --durations 10 $(or $(PYTEST_ARGS),tests/fleet)

.PHONY: test-noise
test-noise: ## the tests that use engines, beside another bridge at work, of which they must see nothing
	@$(MAKE) pytest BESIDE="$(VENV)/python -m tests.noise" \
	    PYTEST_ARGS="tests/contract tests/e2e tests/sandbox tests/security"

# How many examples for each property; and where the search starts, to have the same one again.
FUZZ_EXAMPLES ?= 2000
FUZZ_SEED := $(or $(FUZZ_SEED),$(shell echo $$RANDOM$$RANDOM))

.PHONY: fuzz
fuzz: venv ## search for frames and guests that the host cannot take; FUZZ_EXAMPLES says how long
	@echo "The same search again: make fuzz FUZZ_SEED=$(FUZZ_SEED) FUZZ_EXAMPLES=$(FUZZ_EXAMPLES)"
	@FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(VENV)/python -m pytest tests/fuzz $(PYTEST_ARGS) \
	    --hypothesis-profile=fuzz --hypothesis-seed=$(FUZZ_SEED) --show-capture=no --durations 5

# The first backend gets most of the runs, each other one a tenth.
RUNS ?= 2000
SOAK_BACKENDS ?= bubblewrap,podman,docker
# --day runs what an agent does on an ordinary day: calls, sessions, files, memories.
SOAK_ARGS ?=

.PHONY: soak
soak: packages venv ## thousands of adversarial runs, RUNS of them; the host has to stay as it was
	@$(MAKE) soak-sessions
	@$(WITH_ENGINES) $(VENV)/python -m tests.soak --runs $(RUNS) --backends $(SOAK_BACKENDS) $(SOAK_ARGS)

# SOAK_SECONDS and SOAK_SEED set how long it takes, and which sessions are lost how.
.PHONY: soak-sessions
soak-sessions: venv ## servers that lose 200 sessions in random ways, in an hour: no call is stuck or repeated, nothing is left
	@$(VENV)/python -m benchmarks.lost_sessions

FLEET_SECONDS ?= 1800

.PHONY: soak-shared
soak-shared: packages venv ## three bridges on one PostgreSQL under random faults, FLEET_SECONDS long: nothing is doubled, lost or left
	@$(VENV)/python -m benchmarks.shared_soak --seconds $(FLEET_SECONDS)

# Of claude, codex, gemini, qwen, opencode, copilot; all unless given.
CLIENTS ?=

.PHONY: clients
clients: packages venv $(if $(filter-out claude codex,$(or $(CLIENTS),all)),more-clients,node) ## what reaches real clients' models, into docs/clients.md; CLIENTS names some
	@$(VENV)/python -m tests.clients $(CLIENTS)

# What `python -m benchmarks --help` lists: BENCH_ARGS='--quick --engine podman --only warm'.
BENCH_ARGS ?=

.PHONY: bench
bench: packages venv ## measure on every engine, beside floors of the same run; BENCH_ARGS says what
	@$(WITH_ENGINES) $(VENV)/python -m benchmarks $(BENCH_ARGS)

.PHONY: bench-fleet
bench-fleet: packages venv ## the same on other machines alone: the Kubernetes of `make test-fleet`
	@$(WITH_ENGINES) --only-podman $(VENV)/python -m benchmarks --engine kubernetes $(BENCH_ARGS)

.PHONY: bench-disclosure
bench-disclosure: venv node ## what real servers' tools cost a model with and without the bridge, and how search fares
	@scripts/bench-servers
	@$(VENV)/python -m benchmarks.disclosure

.PHONY: bench-compare
bench-compare: venv ## what got worse since the published reading, or the results in OLD; NEW is the last run's
	@$(VENV)/python -m benchmarks.compare $(OLD) $(NEW)

.PHONY: bench-publish
bench-publish: venv ## put the last results into docs/performance.md
	@$(VENV)/python -m benchmarks.publish

# --- documents ---------------------------------------------------------------------------------------

.PHONY: reference
reference: venv ## write docs/reference and the promises in SECURITY.md from the code
	@$(VENV)/python -m scripts.reference

.PHONY: package
package: venv ## write the files of all packages from packaging/product.toml
	@$(VENV)/python -m scripts.package write

# Of wheel, bundle, plugin, registry, deb, image; all unless given.
PARTS ?=

.PHONY: release
release: packages venv node ## build and check every package, into dist; PARTS names some; publishes nothing
	@scripts/node-peers packaging/node
	@$(WITH_ENGINES) --only-podman $(VENV)/python -m scripts.package release $(PARTS)

.PHONY: recording
recording: packages venv ## record a run in a terminal, into docs/images/run.svg
	@$(VENV)/python -m scripts.recording

.PHONY: lock
lock: ## write requirements.lock anew, with the newest versions
	scripts/lock

.PHONY: docs
docs: venv ## the documents as a site, in build/site; a broken link is an error
	@$(VENV)/python scripts/site.py build/site
	@echo "Built: build/site/index.html"

# --- clean-up ----------------------------------------------------------------------------------------

.PHONY: clean
clean: ## remove what was built: environment, caches, images, the engines' storage
	@scripts/clean
