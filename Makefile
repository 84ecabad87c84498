# make serve   set up, fetch the default model, serve it        (ARGS="--port 9000" passes flags on)
# make test    set up, run everything that CI runs
# make check   style, types and import arrows only
# make audit   whether anything that constraints.txt pins is known to be vulnerable, where that can be asked
# make kernels-check  compile every GPU kernel for an H100 or H200, which needs none, and say what each takes
# make gpu-check  on a machine with such a GPU: kernels against references, then times, in under 6 minutes
# make load    open 16 sockets to a running server and time them (ARGS="--sockets 64")
# make bench-peers  the same load on rota and on the other engines that are installed, in turn (see CONTRIBUTING.md)
# make soak    20 minutes of people who do everything to a server, and what is left (ARGS="--seconds 60")
# make crowd   10,000 sockets that say nothing, and those who ask beside them (ARGS="--sockets 2000")
# make laptops three customers, four policies: who waits for whom, as tables and laptops.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test check kernels-check gpu-check load bench-peers soak crowd laptops browser nginx audit clean

serve: $(VENV)/.runtime
	@exec $(BIN)/rota serve $(ARGS)

load: $(VENV)/.runtime
	@exec $(BIN)/rota load $(ARGS)

bench-peers: $(VENV)/.runtime
	@exec $(BIN)/python -m loadgen.bench_peers $(ARGS)

soak: $(VENV)/.development
	@exec $(BIN)/python -m tests.soak $(ARGS)

crowd: $(VENV)/.development
	@exec $(BIN)/python -m tests.end_to_end.idle_sockets --sockets 10000 $(ARGS)

laptops: $(VENV)/.runtime
	@exec $(BIN)/rota replay laptops --alone B --html laptops.html $(ARGS)

check: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_arrows.py

kernels-check: $(VENV)/.development
	@exec $(BIN)/python -m kernels.triton.compiling

gpu-check: $(VENV)/.development
	@exec $(BIN)/python -m tests.gpu.check $(ARGS)

# Says in one line when nobody can be asked, as without a network, and fails only for what is known.
audit: $(VENV)/.development
	@$(BIN)/python -m tests.audit

# On every core: a file of tests is one process's, so that its servers are started once.
test: check audit browser nginx
	$(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# The browser tests drive the system's chromium: installed here where that is possible, explained where it is not.
browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; \
	  else \
	    echo "The browser tests need /usr/bin/chromium. On Debian or Ubuntu: sudo apt-get install chromium" >&2; exit 1; \
	  fi; }

# The README's nginx is tried where there is one: installed here where that is possible (and not started), else left out.
nginx:
	@PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null || { \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx-light; } \
	  || echo "The tests behind nginx are left out. On Debian or Ubuntu: sudo apt-get install nginx-light" >&2; }

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "rota needs Python 3.11 to 3.13; this is $$($(PYTHON) --version). Use: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing rota, PyTorch and what they need into $(VENV): some minutes the first time."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.development: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing rota, PyTorch and what they and the tests need into $(VENV): some minutes the first time."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
