# Everything from an empty clone: each target makes .venv and whatever else it needs, once; the second time costs nothing and no network.
PYTHON ?= python3
PY := .venv/bin/python
# One thread a process: the tests run in two, and sums come out the same on every machine.
TESTS := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m pytest --jaxtyping-packages=interp,typechecked.check

.PHONY: report test check bench families clean

report: .venv/.installed
	@scripts/report.sh

test: check .venv/.browser
	$(TESTS) -n 2 --dist loadfile

check: .venv/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: .venv/.installed-dev
	$(PY) -m benchmarks

families: .venv/.installed-dev
	$(PY) -m interp.families

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find reports -mindepth 1 ! -name README.md -delete

.venv/.installed: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh .

.venv/.installed-dev: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh '.[dev]'

.venv/.browser: .venv/.installed-dev scripts/browser.sh
	@scripts/browser.sh
