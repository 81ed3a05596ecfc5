PYTHON ?= $(shell command -v python3.11 || command -v python3)
EXTRAS = train,eval,serve,dev
# Without dependencies: xgrammar asks for triton, hundreds of megabytes that are of use on a GPU only.
GRAMMAR = xgrammar apache-tvm-ffi
PYTEST = -m pytest -n 2 --dist worksteal

DEMO = hub_card/wedlm-demo

.PHONY: demo demo-model demo-report demo-code test test-slow test-oldest mutants lint

# Generates text; the first run makes .venv.
demo: .venv/installed
	.venv/bin/python -m wedlm.demo

# Trains the demo checkpoint, about an hour on 2 cores; goes on where it was stopped. Then comes demo-report.
demo-model: .venv/installed
	.venv/bin/python -m wedlm.hub_card.demo.recipe build/demo-model
	mkdir -p $(DEMO)
	cp build/demo-model/checkpoint/* $(DEMO)

# Measures the demo checkpoint and writes its card; goes on where it was stopped.
demo-report: .venv/installed
	.venv/bin/python -m wedlm.hub_card.demo.report
	.venv/bin/python -m wedlm.hub_card.demo.card

# Puts the present code beside the demo checkpoint's weights.
demo-code: .venv/installed
	.venv/bin/python -c "from wedlm import WeDLMConfig; WeDLMConfig.from_pretrained('$(DEMO)').save_pretrained('$(DEMO)')"

# Every test that is not marked slow.
test: .venv/installed
	.venv/bin/python $(PYTEST) -m "not slow"

# What needs a compiler, a wheel build or minutes.
test-slow: .venv/installed
	.venv/bin/python -m pytest -m slow

# The same tests as `test` on the oldest versions that setup.py promises.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python $(PYTEST) -m "not slow"

# Breaks one line at a time; each must make a test fail.
mutants: .venv/installed
	.venv/bin/python tests/mutants.py $(ONLY)

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

.venv/installed: setup.py pyproject.toml constraints.txt
.venv-oldest/installed: setup.py pyproject.toml constraints-oldest.txt

%/installed:
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints$(patsubst .venv%,%,$*).txt --editable ".[$(EXTRAS)]"
	$*/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints$(patsubst .venv%,%,$*).txt --no-deps $(GRAMMAR)
	touch $@
