# Every target but `gpu` sets up .venv by itself; Python >= 3.11, pip, make and a C++ compiler are all it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test acceptance browser clients gpu gpu-tests bench format

demo: .venv/ready
	$(BIN)/genwright generate "What is the capital of France?" --chat
	rm -rf build/emoji
	$(BIN)/genwright images -n 81 --classes 0,1,2,3,4,5,6,7,8 --seed 7 --out build/emoji
	cp build/emoji/grid.png emoji.png

test: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

acceptance: .venv/ready
	GENWRIGHT_FULL_SIZE=1 $(BIN)/pytest --timeout 3600

# The server's page in Debian's Chromium; installing that needs root.
browser: .venv/ready
	command -v chromium > /dev/null || apt-get install --yes --quiet chromium
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt playwright
	$(BIN)/pytest tests/serve/test_page.py

# Public clients of the server's APIs, in an environment of their own; needs Node and npm. litellm imports mcp for tools.
clients: .venv/ready
	test -x build/clients/bin/python || $(PYTHON) -m venv build/clients
	build/clients/bin/pip install --quiet --disable-pip-version-check langchain-openai litellm mcp
	npm install --silent --prefix build/clients openai
	GENWRIGHT_CLIENTS=build/clients $(BIN)/pytest tests/serve/test_other_clients.py

# Benchmarks that need no other checkout or program.
ALONE := $(filter-out $(addprefix benchmarks/,before_after.py dropin_gpt_fast.py inspect_scripts.py),$(wildcard benchmarks/*.py))

# The GPU's tests, and one table of figures, by the machine's own Python (PyTorch, pytest) and without an installation.
# Each file has a process of its own, eight at a time, because most of the time kernels are compiled.
gpu:
	$(MAKE) --jobs 8 --keep-going --output-sync gpu-tests
	$(PYTHON) -m genwright bench llama2_7b_bf16 llama2_7b_int8 llama2_7b_int4 mixtral_8x7b_int8

GPU_TESTS := $(shell grep -lrE 'mark.gpu|def .*device.[: ]' tests --include='test_*.py')

gpu-tests: $(GPU_TESTS:%=gpu/%)

gpu/%:
	@echo $*
	@$(PYTHON) -m pytest -o addopts= --import-mode importlib -p no:cacheprovider -q -m gpu $* || test $$? = 5  # it has none

# A text in the public domain for `genwright eval`.
build/acts.txt: .venv/ready
	mkdir -p build
	$(BIN)/python tests/public_text.py $@

bench: .venv/ready
	for script in $(ALONE); do $(BIN)/python $$script || exit 1; done

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps piq
	$(BIN)/python -m compileall -q genwright  # else PYTHONDONTWRITEBYTECODE=1 compiles at every start, which takes 0.3 s
	$(BIN)/genwright generate Hello --max-new-tokens 1 > /dev/null  # fetches the default model and compiles its kernels
	touch $@
