# Each target does all of its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: reproduce try test test-all examples test-fast test-newest test-oldest coverage harden lint format lab docs package benchmark constraints clean

reproduce: $(VENV)/.offspan
	@$(BIN)/offspan reproduce lqr
	@$(BIN)/offspan reproduce pendulum --quick
	@$(BIN)/offspan report --stored docs/results

# Tests keep what they compile for the next time, as the command line does: most of their time is compilation.
test test-all examples test-fast coverage: export JAX_COMPILATION_CACHE_DIR = $(abspath $(VENV))/compiled
test test-all examples test-fast coverage: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test test-all examples test-fast coverage: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1

# Compiled quickly (conftest.py), but for what is about bits. `make test` leaves out the tests that take longest; CI runs all.
test test-all: $(VENV)/.test
	@$(BIN)/pytest -q -n auto --dist loadfile -m "not as_shipped and not sweep$(if $(filter test,$@), and not long)" --ignore tests/test_readme.py
	@XLA_FLAGS= $(BIN)/pytest -q -n auto --dist loadfile -m "as_shipped$(if $(filter test,$@), and not long)"

# The code of the README, the docs and the examples, as a reader runs it.
examples: $(VENV)/.test
	@$(BIN)/pytest -q -n auto tests/test_readme.py

# One process, in less than a minute: what to run while working.
test-fast: $(VENV)/.test
	@$(BIN)/pytest -q -m "not slow" --hypothesis-profile fast

# The fast tests and one experiment with the newest Python that is installed here, and the newest versions that pyproject.toml allows.
NEWEST ?= $(shell for python in python3.13 ~/.pyenv/versions/3.13*/bin/python python3.12 ~/.pyenv/versions/3.12*/bin/python; do \
  $$python -c pass 2> /dev/null && echo $$python && break; done)
test-newest:
	@python="$(NEWEST)"; if [ -z "$$python" ]; then \
	  echo "No Python 3.13 or 3.12 is installed here, so the newest versions were not tested."; \
	else \
	  rm -rf $(VENV)/newest && $(MAKE) --no-print-directory VENV=$(VENV)/newest PYTHON="$$python" CONSTRAINTS= test-fast try; \
	fi

# The same with the oldest versions that pyproject.toml allows: `>=` read as `==`. They may use what newer versions of others deprecate.
test-oldest:
	@rm -rf $(VENV)/oldest && mkdir -p $(VENV)/oldest
	@$(PYTHON) -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' | sed 's/>=/==/' > $(VENV)/oldest/oldest.txt
	@PYTEST_ADDOPTS="-W ignore::DeprecationWarning" $(MAKE) --no-print-directory VENV=$(VENV)/oldest CONSTRAINTS="--constraint $(VENV)/oldest/oldest.txt" test-fast try

try: $(VENV)/.offspan
	@$(BIN)/offspan reproduce lqr --quick --folder $(VENV)/runs
	@$(BIN)/offspan report --folder $(VENV)/runs

coverage: $(VENV)/.test
	@$(BIN)/pytest -q -n auto --dist loadfile --cov=offspan --cov-report=term:skip-covered

# Properties with more examples and settings, twenty times the corrupted inputs of the tests, real commands killed at random moments, and large
# experiments: this takes about two hours on two cores.
harden: $(VENV)/.test
	@XLA_FLAGS= $(BIN)/pytest -q -n auto --dist loadfile -m "hypothesis or sweep" --hypothesis-profile thorough tests
	@OFFSPAN_FUZZ=20 $(BIN)/pytest -q -n auto --dist worksteal tests/test_fuzz.py
	@$(BIN)/python tests/kills.py
	@$(BIN)/python tests/cluster_kills.py
	@$(BIN)/python tests/load.py

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The page to play with, as the docs have it.
lab: $(VENV)/.offspan
	@$(BIN)/offspan lab --no-open --output docs/lab.html

# Pages made from the code and executed notebooks first, into docs/generated; then the site. (With --quiet, --strict finds no warnings.)
docs: $(VENV)/.dev
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict > $(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }
	@echo "docs: site/index.html"

# Wheel and source, built, and the wheel tried with each of PYTHONS in an environment of its own, away from the checkout.
PYTHONS ?= $(PYTHON)
IN_THE_WHEEL = py.typed report/style.mplstyle report/page.html.jinja experiments/presets/lqr.toml lab/page/index.html lab/page/main.js lab/pendulum.json
package: $(VENV)/.dev
	@rm -rf dist && $(BIN)/python -m build --outdir dist . > $(VENV)/build.log 2>&1 || { tail -20 $(VENV)/build.log; exit 1; }
	@set -e; for python in $(PYTHONS); do \
	  rm -rf $(VENV)/clean && $$python -m venv $(VENV)/clean; \
	  $(VENV)/clean/bin/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) dist/*.whl; \
	  (cd $(VENV)/clean && bin/python --version && bin/offspan --version && bin/offspan reproduce lqr --quick --folder runs && \
	    bin/offspan report --folder runs && bin/offspan lab --no-open); \
	  $(VENV)/clean/bin/python -c 'import json, offspan; assert json.load(open("$(VENV)/clean/runs/lqr-quick/provenance.json"))["offspan"] == offspan.__version__'; \
	  for file in $(IN_THE_WHEEL); do \
	    test -f $(VENV)/clean/lib/python3*/site-packages/offspan/$$file || { echo "The wheel has no $$file." >&2; exit 1; }; done; \
	done
	@ls dist

benchmark: $(VENV)/.dev
	@$(BIN)/python benchmarks

# The newest versions that the ranges of pyproject.toml allow; commit the file when the tests pass with them.
constraints:
	@rm -rf $(VENV)
	@$(MAKE) --no-print-directory CONSTRAINTS= $(VENV)/.dev
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools; } > constraints.new
	@mv constraints.new constraints.txt
	@touch $(VENV)/.offspan $(VENV)/.test $(VENV)/.dev

clean:
	@rm -rf $(VENV) site docs/generated dist .pytest_cache .ruff_cache .hypothesis

CONSTRAINTS ?= --constraint constraints.txt

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "offspan needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 …" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.offspan: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing offspan into $(VENV): a minute or two, once."
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable .
	@touch $@

# pip before 25.1 cannot read dependency groups, so the groups are read here.
REQUIRED = $(BIN)/python -c 'import sys, tomllib; \
  print(*(one for one in tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]] if isinstance(one, str)), sep="\n")'

$(VENV)/.test: $(VENV)/.offspan
	@echo "Installing what the tests need."
	@$(REQUIRED) test > $(VENV)/test.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --requirement $(VENV)/test.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo "Installing what the linters and the docs need."
	@$(REQUIRED) dev > $(VENV)/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --requirement $(VENV)/dev.txt
	@touch $@
