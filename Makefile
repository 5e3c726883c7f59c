# Each target installs what it needs into .venv by itself. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints-dev.txt

.DEFAULT_GOAL := help
.PHONY: demo example tutorial test test-gpu lint type format bench bench-full bench-gpu soak chaos check-install figures docs clean help

demo: .venv/.installed ## Train DQN on Pong with a compressed replay buffer (two minutes; ARGS="--help")
	$(BIN)/python examples/demo.py $(ARGS)

example: .venv/.installed ## Run an example (NAME=train_replay ARGS="--steps 5000"; all are in examples/)
	$(BIN)/python examples/example_$(NAME).py $(ARGS)

tutorial: .venv/.installed ## Run docs/tutorial.md (two minutes), and keep what it prints and draws for that page
	mkdir -p runs/tutorial
	$(BIN)/python examples/tutorial.py > runs/tutorial/printed.txt
	cd runs/tutorial && $(CURDIR)/$(BIN)/python -m sb3_extra_buffers inspect catch.buffer --frames frames.png >> printed.txt
	cp runs/tutorial/printed.txt benchmarks/results/tutorial.txt
	cp runs/tutorial/catch.gif runs/tutorial/frames.png docs/images/

# pytest already keeps every core busy: torch should not start threads on top of that.
test: export OMP_NUM_THREADS = 1
test: .venv/.installed ## Run the tests (ARGS="-k replay")
	$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

# With a python that has torch for CUDA: the CPU build of .venv sees no device.
test-gpu: ## Run the tests of device buffers on a CUDA machine (PYTHON=the python with torch for CUDA)
	PYTHONPATH=src:$(PYTHONPATH) $(PYTHON) -m pytest tests/gpu_buffers $(ARGS)

lint: .venv/.installed ## Check code and formatting with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: .venv/.installed ## Check types with mypy: ours, and of a script as users write it
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --strict --config-file= tests/typing/user_script.py

format: .venv/.installed ## Sort imports, fix what ruff can fix, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed-bench ## Measure memory and speed against SB3 and others (ten minutes; ARGS="--help")
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-full: .venv/.installed-bench ## All recordings and methods, a million transitions, training (hours)
	$(BIN)/python benchmarks/run.py --preset full $(ARGS)
	$(BIN)/python benchmarks/run.py --preset pictures
	$(BIN)/python benchmarks/beside_training.py
	$(BIN)/python benchmarks/million.py
	$(BIN)/python benchmarks/training.py

bench-gpu: ## Measure device buffers on a CUDA machine (five minutes; PYTHON=the python with torch for CUDA)
	PYTHONPATH=src:$(PYTHONPATH) $(PYTHON) benchmarks/gpu.py $(ARGS)

soak: .venv/.installed ## Kill, damage, fill disks, fuzz, spill, add and save in threads for an hour (ARGS="kills --n 200")
	$(BIN)/python tests/soak.py --out benchmarks/results/soak.json $(ARGS)

chaos: .venv/.installed ## Kill shards, collectors and a node of a distributed buffer while a model learns (ARGS="--minutes 30")
	$(BIN)/python benchmarks/distributed.py chaos $(ARGS)

check-install: .venv/.installed ## Build, install into empty environments, use it there (ten minutes; ARGS="minimal zstd")
	$(BIN)/python scripts/check_install.py $(ARGS)

figures: .venv/.installed ## Write the figures of README and docs from benchmarks/results, redraw plots (ARGS="--check")
	$(BIN)/python scripts/figures.py $(ARGS)

docs: .venv/.installed-docs ## Build the documentation into docs/_build
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build

clean: ## Remove what was built or cached; .venv stays
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 17

# torch comes first, alone: the constraint then decides its build before anything else asks for it.
.venv/.installed: pyproject.toml constraints-dev.txt
	@echo "Installing torch and the development dependencies into .venv (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) -e ".[dev]"
	@touch $@

.venv/.installed-docs: .venv/.installed
	@echo "Installing the documentation tools into .venv"
	@$(PIP) -e ".[docs]"
	@touch $@

# One at a time: a package that cannot be installed here is missing in the tables, with the reason, and nothing else is.
.venv/.installed-bench: .venv/.installed benchmarks/requirements.txt
	@echo "Installing what the benchmarks measure and record into .venv"
	@grep -v '^#' benchmarks/requirements.txt | while read -r line; do $(PIP) "$$line" || echo "not installed: $$line"; done
	@touch $@
