# make serve   set up, fetch the default model, serve it        (ARGS="--port 9000" passes flags on)
# make test    set up, run everything that CI runs
# make check   style, types and import arrows only
# make load    open 16 sockets to a running server and time them (ARGS="--sockets 64")
# make bench-peers  the same load on rota and on the other engines that are installed, in turn (see CONTRIBUTING.md)
# make laptops three customers, four policies: who waits for whom, as tables and laptops.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test check load bench-peers laptops browser clean

serve: $(VENV)/.runtime
	@exec $(BIN)/rota serve $(ARGS)

load: $(VENV)/.runtime
	@exec $(BIN)/rota load $(ARGS)

bench-peers: $(VENV)/.runtime
	@exec $(BIN)/python -m loadgen.bench_peers $(ARGS)

laptops: $(VENV)/.runtime
	@exec $(BIN)/rota replay laptops --alone B --html laptops.html $(ARGS)

check: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_arrows.py

test: check browser
	$(BIN)/pytest

# The browser tests drive the system's chromium: installed here where that is possible, explained where it is not.
browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; \
	  else \
	    echo "The browser tests need /usr/bin/chromium. On Debian or Ubuntu: sudo apt-get install chromium" >&2; exit 1; \
	  fi; }

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
