PYTHON ?= $(shell command -v python3.11 || command -v python3)
EXTRAS = train,eval,serve,dev
# Without dependencies: xgrammar asks for triton, hundreds of megabytes that are of use on a GPU only.
GRAMMAR = xgrammar apache-tvm-ffi
PYTEST = -m pytest -n 2 --dist worksteal

.PHONY: demo test test-slow test-oldest mutants lint

# Generates text; the first run makes .venv.
demo: .venv/installed
	.venv/bin/python -m wedlm.demo

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
