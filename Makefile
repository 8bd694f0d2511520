# Everything runs in .venv, which the first command sets up. PYTHON chooses the interpreter: make test PYTHON=python3.12
# Tests on real data are skipped unless CHAINRULE_DATA names its folder; CONTRIBUTING.md says what belongs there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-versions test-slow check format bench experiments docs clean

demo: .venv/ready  ## an n-gram model in seconds, then every family compared: at most three minutes
	$(BIN)/python examples/demo.py

test: .venv/ready-dev  ## every test but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-versions:  ## quick tests on every other version of Python that is installed: a few minutes, in .venvs/
	.ci/test-versions

test-slow: .venv/ready-dev  ## the tests that train for minutes: about 6 hours in all
	$(BIN)/python -m pytest -m slow -vv

check: .venv/ready-dev  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready-bench  ## speed, as ratios against peers in the same run: at most ten minutes, into benchmarks/results.json
	$(BIN)/python benchmarks/run.py

experiments: .venv/ready-dev  ## what the source notes claim, put to the test: docs/claims/; at most 30 minutes each, needs CHAINRULE_DATA
	$(BIN)/python experiments/000_self_regressive.py $(if $(FEATURES),--features $(FEATURES))
	for file in experiments/00[1-9]*.py; do $(BIN)/python $$file || exit 1; done

docs: .venv/ready-dev  ## the manual, in site/
	PYTHONPATH=docsite $(BIN)/zensical build --strict --clean

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[serve]"
	touch $@

.venv/ready-dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/ready

.venv/ready-bench: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev,bench]"
	$(BIN)/pip install --quiet -c constraints.txt kenlm || echo "KenLM cannot be built here: n-grams are measured without it"
	touch $@ .venv/ready-dev .venv/ready

clean:
	rm -rf .venv .venvs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
