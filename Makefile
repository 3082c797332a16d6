# make demo   set up .venv and run the example        make check   ruff, import rules, mypy
# make test   set up .venv and run the test suite     make clean   remove .venv and caches
# make docs   build the site into site/, examples and reports included (ten minutes the first time, then seconds)
# make test-tensorflow   set up .venv-tensorflow, of its own, and test the Keras layer in it (a few minutes the first time)
# make fuzz   read damaged files for SECONDS=60, of the KINDS given (all), changed by SEED (another each time)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TF_VENV := .venv-tensorflow
READY  := $(VENV)/.ready
JOBS   ?= 2
SECONDS ?= 60

.PHONY: demo test test-tensorflow check docs format fuzz clean

demo: $(READY)
	$(BIN)/python examples/cdl_channel_estimation.py

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-tensorflow: $(TF_VENV)/.ready
	$(TF_VENV)/bin/python -m pytest tests/on_tensorflow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site: site/index.html"

fuzz: $(READY)
	$(BIN)/python tests/unit/fuzz_files.py --seconds $(SECONDS) $(if $(KINDS),--kinds $(KINDS)) $(if $(SEED),--seed $(SEED))

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: Python 3.11 or newer is needed, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1); try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) > $(VENV).log 2>&1 || \
	  { echo "error: '$(PYTHON) -m venv' failed: $$(tail -n 1 $(VENV).log); install Python's venv module (Debian: python3-venv)" >&2; exit 2; }
	@echo "Installing into $(VENV) (a few minutes the first time; log in $(VENV)/install.log)"
	@mv $(VENV).log $(VENV)/install.log; \
	  $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,cluster]' >> $(VENV)/install.log 2>&1 || \
	  { echo "error: the packages could not be installed; is the network reachable? The reason is at the end of $(VENV)/install.log" >&2; exit 2; }
	@touch $@

$(VENV)/.docs: $(READY)
	@echo "Installing what builds the site into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,cluster,docs]' >> $(VENV)/install.log 2>&1 || \
	  { echo "error: the packages could not be installed; the reason is at the end of $(VENV)/install.log" >&2; exit 2; }
	@touch $@

$(TF_VENV)/.ready: pyproject.toml constraints.txt
	@echo "Installing TensorFlow and this package into $(TF_VENV) (log in $(TF_VENV)/install.log)"
	@$(PYTHON) -m venv $(TF_VENV) && \
	  $(TF_VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[tensorflow]' pytest > $(TF_VENV)/install.log 2>&1 || \
	  { echo "error: the packages could not be installed; is the network reachable? The reason is at the end of $(TF_VENV)/install.log" >&2; exit 2; }
	@touch $@

clean:
	rm -rf site .cache $(VENV) $(TF_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out
