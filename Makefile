# simserve: everything a checkout needs. `make run` and `make test` set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Bytecode is kept between runs: the tests start a hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run kernel test test-slow lint format check bench docs figures release clean

help:
	@echo "make run     simulate scenarios/chatbot.yaml and leave the report under results/"
	@echo "make test    run the tests"
	@echo "make check   formatting, lint, types and tests, as CI does"
	@echo "make docs    build the site of the docs under site/"
	@echo "make bench   measure speed and memory, write benchmarks/RESULTS.md"
	@echo "make figures DATE=2026-12-01   write ranges, accuracy and the README anew, after predictions have moved"
	@echo "make release VERSION=0.3.0   rehearse a release: wheel and sdist under dist/, nothing else changes"
	@echo "make clean   remove environments, caches and results"

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "simserve needs Python 3.11 or newer; run: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.installed $@

run: $(VENV)/.installed
	$(BIN)/simserve run scenarios/chatbot.yaml

docs: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python docs/build_site.py site

# Compiled once, and kept: searches of the tests run on it.
kernel: $(VENV)/.installed-dev
	@$(BIN)/python -c 'from simserve.engine.compiled.loader import load_kernel; load_kernel()'

# Neighbours share what they have run: each worker gets a stretch of the tests, and takes from another when it is done.
test: kernel
	$(BIN)/pytest -n auto --dist worksteal

# What is slow, and every property with all of its examples, of which `make test` tries a third at most. WITHOUT='a or b'
# leaves out tests by words of their names.
test-slow: kernel
	FUZZ=$${FUZZ:-1} $(BIN)/pytest -n auto --dist worksteal -m 'slow or hypothesis' $(if $(WITHOUT),-k 'not ($(WITHOUT))')

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/bench.py --write benchmarks/RESULTS.md

# Each reads what the ones before it have written. The measurements lie in DATA.
DATA ?= ../shared/data
figures: $(VENV)/.installed-dev
	@test -n "$(DATE)" || { echo "say the day: make figures DATE=2026-12-01" >&2; exit 2; }
	$(BIN)/simserve validate --data $(DATA)/measured --accuracy calibration/ACCURACY.md \
		--expected-errors calibration/expected_errors.json --date $(DATE)
	$(BIN)/simserve validate --source unseen --accuracy calibration/unseen/README.md --date $(DATE)
	$(BIN)/python -m benchmarks.exam --data $(DATA) --predictions AIConfigurator=$(DATA)/rivals/aiconfigurator_0.12.csv
	$(BIN)/python -m calibration.gate.accept
	$(BIN)/python docs/write_kv_logs.py
	$(BIN)/python docs/write_models.py
	$(BIN)/python docs/write_reference_walk.py
	$(BIN)/simserve schema > scenarios/schema.json
	$(BIN)/simserve schema --markdown > docs/scenario-keys.md
	$(BIN)/python docs/write_readme.py

release: $(VENV)/.installed-dev
	.ci/release $(VERSION)

clean:
	rm -rf $(VENV) results build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
