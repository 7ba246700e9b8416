# Two commands: `make demo` and `make test`. Both create the environment first if need be.
#
# torch comes first and by itself: a plain `pip install` of a package that needs it may otherwise fetch
# gigabytes of CUDA libraries. Choose a build with TORCH, for instance
#     make demo TORCH="torch --index-url URL-OF-A-CPU-INDEX"

TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help env bench-env demo test lint check-equality llm-equality property-tests benches clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## create the environment

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) (about 0.2 GB to download as a CPU build)"
	$(BIN)/pip install --quiet $(TORCH)
	@echo "installing Stretto and what it needs (a few hundred MB to download)"
	$(BIN)/pip install --quiet -e ".[local,postgres,structured,dev]"
	@touch $@

bench-env: $(VENV)/.bench ## add the peers that the benchmarks compare with

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet -e ".[bench]"
	@touch $@

demo: env ## answer questions over real documents
	@mkdir -p runs
	$(BIN)/stretto ask --docs examples/documents --questions examples/questions.jsonl --trace runs/demo.html

test: env ## format, lint, types and the whole test suite
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

lint: env ## mend format and what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

property-tests: env ## the same-result properties, with many more examples
	STRETTO_EXAMPLES=4000 $(BIN)/pytest tests/properties --timeout=7200

check-equality: env ## 200 questions with passes on and off, on real engines: make check-equality DATA=DIR
	@test -d "$(DATA)" || { echo "give the folder with the question sets: make $@ DATA=DIR"; exit 2; }
	$(BIN)/python -m stretto.bench.equality --data $(DATA)

llm-equality: env ## the in-process LLM against transformers, 1,000 prompts for each kind of model
	$(BIN)/python -m stretto.bench.llm_equality

benches: bench-env ## all benchmarks, as JSON in runs/: make benches DATA=DIR
	@mkdir -p runs
	$(BIN)/stretto bench overhead --json runs/overhead.json
	$(BIN)/stretto bench passes --json runs/passes.json $(if $(DATA),--data $(DATA))
	$(BIN)/stretto bench llm --json runs/llm.json

clean: ## remove the environment and everything made
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
