# Two commands do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types wheel-check proto clean

demo: $(STAMP)
	BIN=$(BIN) sh experiments/demo/run.sh

test: $(STAMP) lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term --cov-fail-under=85

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Builds the wheel, installs it into a venv of its own and runs the commands from outside the tree.
wheel-check: $(STAMP)
	BIN=$(BIN) PYTHON=$(PYTHON) sh tests/wheel_check.sh

proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
		workers/proto/v1/worker.proto

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info outputs multirun .coverage .coverage.* htmlcov
