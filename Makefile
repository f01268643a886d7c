# Every target sets itself up: `make demo` and `make test` work on a bare clone.
PYTHON ?= python3
# Installed first, so that a build that is already here (CPU or CUDA) is kept.
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Modules are compiled once, not by every worker, rank and command that a test starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test rounding fuzz nightly lint golden docs wheels clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml runtime/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fuscoc needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --editable runtime --editable '.[test,lint,plot,lsp,megatron,transformers]'
	touch $@

demo: $(READY)  ## compile both examples and run them on four ranks as two nodes of two
	$(BIN)/fuscoc compile examples/moe.fsc -o build/moe
	$(BIN)/fuscoc run build/moe --ranks 4 --nodes 2 --tokens 64
	$(BIN)/fuscoc compile examples/vit_patches.fsc -o build/vit_patches
	$(BIN)/fuscoc run build/vit_patches --ranks 4 --nodes 2

test: $(READY)  ## the whole suite, on all cores; no GPU needed
	$(BIN)/python -m pytest -n auto --dist worksteal

# What is compared with torch's own arithmetic, whose rounding is that of the processor's vectors.
# Those compare no sums, or no further than bf16 and fp8 go:
EXACT := $(addprefix tests/torch/test_, cache.py docs.py gpu.py observation.py options.py) \
	$(addprefix tests/adapters/test_, engines.py interfaces.py transformers_refusals.py) \
	$(addprefix tests/examples/test_, device_counts.py gpu.py)
ROUNDED := $(filter-out $(EXACT), $(wildcard $(addsuffix /test_*.py, tests/torch tests/examples tests/adapters))) \
	$(addprefix tests/casts/test_, execution.py float8.py reference.py) \
	$(addprefix tests/engine/test_, plain_torch.py compact.py weights.py)

rounding: $(READY)  ## that part of the suite where torch rounds as without vectors
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest -n auto --dist worksteal $(ROUNDED)

fuzz: $(READY)  ## ten thousand mutated specs, checked and compiled; about fifteen minutes
	FUSCOC_FUZZ=10000 $(BIN)/python -m pytest tests/fuzz --hypothesis-profile night --timeout 7200

nightly: $(READY)  ## twenty thousand generated plans, two thousand executed, ten thousand specs, two thousand along rails, eighty kills, two hosts, other draws
	$(BIN)/python -m pytest -m 'nightly or hypothesis' --hypothesis-profile night --timeout 3600

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(READY)  ## rewrite golden files and the parser's tables after a deliberate change; read the diff
	$(BIN)/python -m fuscoc.lang.tables
	FUSCOC_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/errors tests/passes tests/dialect tests/codegen \
		tests/node_triton/test_text.py

docs: $(READY)  ## write docs/errors.md and the table of docs/language.md anew
	$(BIN)/python -m fuscoc.errors.reference docs/errors.md
	$(BIN)/python -m tests.docs.constructs

wheels: $(READY)  ## both distributions, as sdists and as wheels built from them, in dist/
	$(BIN)/python -m build --outdir dist runtime
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache
