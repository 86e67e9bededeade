# Obscura. `make` lists what there is.
# Everything runs from .venv, which `setup` makes from constraints.txt; nothing is installed outside this folder.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# The tests start many processes, each of which would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := obscura service workers models privacy benchmarks tests scripts alembic
NOTEBOOK := docs/notebook.ipynb

# The first Python on the path that is at least 3.11 and can make virtual environments.
# To choose: make setup PYTHON=/usr/bin/python3.12
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)

# Tests are dealt out to so many processes, one more than two cores keep busy, for many wait for processes of their own.
# Each has databases of its own and takes about 1.5 GB of memory.
TEST_PROCESSES ?= 3

.PHONY: help setup demo test check bench serve worker

help: ## list the targets
	@echo "Obscura: private synthetic images as a service"; echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: $(STAMP) ## make .venv and install the pinned packages (again only when they change)

$(STAMP): pyproject.toml obscura/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "setup: needs Python 3.11 or newer with the venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "setup: making $(VENV) with $(PYTHON) ($$($(PYTHON) --version))"; \
		"$(PYTHON)" -m venv $(VENV); }
	@echo "setup: installing the packages of constraints.txt (the first time takes a few minutes and about 6 GB)"
	@started=$$SECONDS; \
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --progress-bar off --no-compile \
		--constraint constraints.txt --editable ./obscura --editable '.[worker,s3,metrics,oidc,dev]' || { \
		echo "setup: the installation did not go through. It needs the network (or a local package index) once;" >&2; \
		echo "setup: after that, everything but 'make setup' works without. Mend that and run 'make setup' again." >&2; \
		exit 1; }; \
	$(BIN)/python -m compileall -qq -j 0 "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true; \
	echo "setup: done in $$((SECONDS - started)) s"
	@touch $@

demo: setup ## moments and datalens, from upload to private synthetic images, with a report, in var/demo
	@$(BIN)/obscura demo --out var/demo

test: setup ## the whole test suite; PostgreSQL and Redis are used when they can be had
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/with_services.py \
		$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGUMENTS)

check: setup ## style, types and the rules about who may import whom
	@$(BIN)/ruff check $(CODE) $(NOTEBOOK)
	@$(BIN)/ruff format --check $(CODE) $(NOTEBOOK)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

# For what the pages in docs/research were made with, most of a day: make bench BUDGET=full
BUDGET ?= quick

bench: setup ## every benchmark, the quick way; tables on the screen, figures in var/benchmarks
	@$(BIN)/python -m benchmarks --budget $(BUDGET)

serve: setup ## the service with its embedded worker, on http://127.0.0.1:8420
	@$(BIN)/obscura up

worker: setup ## a Celery worker (one training at a time) beside a service with OBSCURA_MODE=celery
	@$(BIN)/celery --app workers.supervise.app worker --concurrency 3 --loglevel info
