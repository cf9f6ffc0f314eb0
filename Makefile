# make demo   a virtual environment, dinoskip in it, and the whole path on embedded data
# make test   the same environment, then lint, and types beside tests
# make test-core   the core's tests without any plug-in: a copy of the tree without plugins/, an environment of its own
# make check-fast   lint, then types beside house rules and the test files that differ from main
# make docs   the same environment, then the documentation as a site: build/site/index.html opens from disk
# make chaos  an hour of kills, full disks, flipped bits and the like on a tiny study (MINUTES=60 SEED=0)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Images of containers forbid caches of bytecode; each process that a test starts would compile the package again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-core check-fast docs chaos lint types format clean
demo: $(STAMP)
	$(BIN)/dinoskip run configs/demo.yaml

test: lint $(STAMP)
	$(BIN)/mypy & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal; tests=$$?; \
	wait $$types && exit $$tests

test-core: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.core_alone -q -n auto --maxprocesses 4 --dist worksteal tests

check-fast: lint $(STAMP)
	$(BIN)/mypy & types=$$!; \
	files=$$(git diff --name-only --diff-filter=d $(or $(SINCE),main) -- 'tests/**/test_*.py' 'plugins/**/test_*.py'); \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -x tests/house/test_house.py $$files; tests=$$?; \
	wait $$types && exit $$tests

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),60) --seed $(or $(SEED),0)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f'Python 3.11 to 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
