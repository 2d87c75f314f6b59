# Each target does all of its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: reproduce test lint format docs constraints clean

reproduce: $(VENV)/.offspan
	@$(BIN)/offspan reproduce lqr
	@$(BIN)/offspan reproduce pendulum --quick

test: $(VENV)/.dev
	@$(BIN)/pytest -q -n auto --dist loadfile

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "docs: site/index.html"

# The newest versions that the ranges of pyproject.toml allow; commit the file when the tests pass with them.
constraints:
	@rm -rf $(VENV)
	@$(MAKE) --no-print-directory CONSTRAINTS= $(VENV)/.dev
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools; } > constraints.new
	@mv constraints.new constraints.txt
	@touch $(VENV)/.offspan $(VENV)/.dev

clean:
	@rm -rf $(VENV) site dist .pytest_cache .ruff_cache .hypothesis

CONSTRAINTS ?= --constraint constraints.txt

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "offspan needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 …" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.offspan: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing offspan into $(VENV): a minute or two, once."
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable .
	@touch $@

# pip before 25.1 cannot read dependency groups, so the group is read here.
$(VENV)/.dev: $(VENV)/.offspan
	@echo "Installing what the tests, the linters and the docs need."
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --requirement $(VENV)/dev.txt
	@touch $@
