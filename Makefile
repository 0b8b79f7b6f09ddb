# `make` alone explains the targets. Each target makes what it needs; a machine with python3 (and its venv module) is enough.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
LOCKER := .venv-lock
PY := $(VENV)/bin/python
# Tests run at a time; most of their time they wait for leases to end. JOBS=0: one by one, in this process.
JOBS ?= 4
# More arguments for pytest, such as: make test PYTEST_ARGS="tests/unit -x"
PYTEST_ARGS ?=
# More arguments for the demos.
DEMO_ARGS ?=
# More arguments for the benchmarks, such as: make bench BENCH_ARGS="-o json"
BENCH_ARGS ?=
# More arguments for the release, such as: make release RELEASE_ARGS="--without-images --without-demo"
RELEASE_ARGS ?=
# More arguments for the fuzzer, such as: make fuzz FUZZ_ARGS="--seconds 60 quantity"
FUZZ_ARGS ?=
SOURCES := $(wildcard edl_agent edl_controller tests benchmarks docker examples protos release requirements)

.PHONY: release images reference help setup demo demo-agents demo-slots demo-paddle test test-paddle check bench faults security fuzz soak test-oldest protos format lock clean etcd36 kube-control-plane test-containers

help: ## explain the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.ready ## make the virtual environment .venv from the lock file (all other targets do it by themselves)

demo: $(VENV)/.ready ## a TrainingJob on a cluster of this machine: it grows, gives room to a service, survives a killed pserver (DEMO_ARGS="--svg PATH")
	@$(PY) -m examples.digits.cluster_demo $(DEMO_ARGS)

demo-agents: $(VENV)/.ready ## the same training by the agents alone: pservers and trainers come, go and are killed (DEMO_ARGS="--svg PATH")
	@$(PY) -m examples.digits.demo $(DEMO_ARGS)

demo-slots: $(VENV)/.ready ## a real etcd and pservers that come, die and are replaced, as a live table
	@$(PY) examples/pservers_demo.py $(DEMO_ARGS)

demo-paddle: $(VENV)/.ready ## an asynchronous PaddlePaddle job that outlives a pserver (fetches 600 MB into the user's cache folder, once)
	@$(PY) -m examples.paddle.demo

test: $(VENV)/.ready etcd36 kube-control-plane ## all tests but the long ones, against real etcd servers
	@$(PY) -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

check: $(VENV)/.ready ## lint, format, types, layers; protos and reference against what is committed
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) -m mypy $(SOURCES)
	@$(VENV)/bin/lint-imports
	@$(PY) protos/compile.py --check
	@$(PY) docs/make_reference.py --check

bench: $(VENV)/.ready ## the speed, as ratios to a baseline in the same run (BENCH_ARGS="-o json")
	@$(PY) -m benchmarks $(BENCH_ARGS)

faults: $(VENV)/.ready ## every row of the fault list with its tests; fails on a row without a test or a reason
	@$(PY) -m tests.fault_list

security: $(VENV)/.ready ## what is promised about security, each row with its tests; fails on a row without a test or a reason
	@$(PY) -m tests.fault_list --list tests/security.toml --mark security

# atheris has wheels for some systems only.
fuzz: $(VENV)/.ready ## libFuzzer on every parser of foreign bytes, 5 s each (FUZZ_ARGS="--seconds 60 quantity"; --help lists the parsers)
	@if $(PY) -m pip --disable-pip-version-check --quiet install --require-hashes --only-binary :all: --no-deps -r requirements/fuzz.txt; \
	  then $(PY) -m tests.security.fuzz $(FUZZ_ARGS); else echo "make fuzz is skipped: atheris does not install here (see above)" >&2; fi

test-paddle: $(VENV)/.ready ## the tests of examples/paddle with a real PaddlePaddle (fetches 600 MB into the user's cache folder, once)
	@$(PY) -m pytest tests/paddle -m paddle $(PYTEST_ARGS)

images: $(VENV)/.ready ## the three images, by docker, podman or buildah, and dist/images/NAME.tar (BASE=IMAGE with Python 3.11; else one is made of Debian packages)
	@$(PY) -m docker.build_images $(if $(BASE),--base $(BASE))

release: $(VENV)/.ready ## dist/: wheel and sdist (reproducible), images, bill of materials, licences, SHA256SUMS, all tried from a clean environment (RELEASE_ARGS="--without-images --without-demo")
	@$(PY) -m release $(RELEASE_ARGS)

test-containers: $(VENV)/.ready etcd36 kube-control-plane ## the images in real containers, on two real kubelets (as root; installs Debian packages, builds kubelet and images)
	@$(PY) -m tests.containers.install > /dev/null || { code=$$?; \
	  if [ $$code -ne 3 ]; then exit $$code; fi; echo "the tests with real containers are skipped (see above)" >&2; }
	@$(PY) -m pytest tests/containers -m containers $(PYTEST_ARGS)

soak: $(VENV)/.ready etcd36 kube-control-plane ## the long tests, minutes to hours
	@$(PY) -m pytest -m soak --timeout=0 $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.ready ## the smoke tests with the oldest allowed dependencies
	@$(OLDEST)/bin/python -m pip list --format=freeze | grep -E '^(grpcio|protobuf|tenacity|click)=='
	@$(OLDEST)/bin/python -m pytest -m "smoke and not soak" $(PYTEST_ARGS)

protos: $(VENV)/.ready ## compile protos/ into the committed descriptor sets
	@$(PY) protos/compile.py

reference: $(VENV)/.ready ## write docs/reference.md from the docstrings
	@$(PY) docs/make_reference.py

format: $(VENV)/.ready ## format the code and repair what the linter can repair
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

lock: $(LOCKER)/.ready ## write the lock files anew from pyproject.toml (with UPGRADE=1: newest versions)
	@$(LOCKER)/bin/python requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove what the targets made in this folder (programs built in the user's cache folder stay)
	rm -rf $(VENV) $(OLDEST) $(LOCKER) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# etcd 3.6 is the third version that the tests know. Without Go they say so and go on with the others; in CI a failed
# build is an error.
etcd36: $(VENV)/.ready
	@$(PY) -m tests.etcd36.build > /dev/null || { code=$$?; \
	  if [ $$code -ne 3 ] && [ -n "$${CI:-}" ]; then exit $$code; fi; \
	  echo "etcd 3.6 is skipped (see above); the tests use the other versions" >&2; }

# The real Kubernetes control plane of the tests: about six minutes on two cores, once. Without Go its tests are skipped
# and say so; in CI a failed build is an error.
kube-control-plane: $(VENV)/.ready etcd36
	@$(PY) -m tests.kube.controlplane.build > /dev/null || { code=$$?; \
	  if [ $$code -ne 3 ] && [ -n "$${CI:-}" ]; then exit $$code; fi; \
	  echo "the tests on a real Kubernetes control plane are skipped (see above); with Go on PATH, or with" >&2; \
	  echo "KUBEBUILDER_ASSETS naming a folder with its three programs, make test runs them" >&2; }

# $(1): folder, $(2): lock file. The project itself is installed editable, with the hatchling of the lock file, so that
# nothing unlocked is fetched.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "edl needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "Python's venv module is not whole here. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@echo "installing $(2) into $(1) ..."
	@$(1)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --only-binary :all: -r $(2)
endef

define install_project
	@$(1)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-index --no-build-isolation -e .
	@touch $@
endef

$(VENV)/.ready: requirements/dev.txt pyproject.toml
	$(call make_venv,$(VENV),requirements/dev.txt)
	$(call install_project,$(VENV))

$(OLDEST)/.ready: requirements/oldest.txt pyproject.toml
	$(call make_venv,$(OLDEST),requirements/oldest.txt)
	$(call install_project,$(OLDEST))

$(LOCKER)/.ready: requirements/lock.txt
	$(call make_venv,$(LOCKER),requirements/lock.txt)
	@touch $@
