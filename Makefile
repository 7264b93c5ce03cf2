# Everything runs in .venv, which the first target makes. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

# The first Python on the path that is new enough. To choose another: make test PYTHON=/path/to/python
CANDIDATES := python3 python3.13 python3.12 python3.11 python
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c "$(RECENT)" 2>/dev/null && echo $$p && break; done)

# A folder with mnist/train.npz and mnist/dev.npz. Default: the digits bundled with scikit-learn.
DATA ?=
# The version of the catalogue. Default: the one that it has.
VERSION ?=
# Further arguments of pytest: make invariance ARGS="--explainer attnlrp"
ARGS ?=

BIN := .venv/bin
READY := .venv/installed
REPORT := build/report

# After the install nothing needs the network. With this variable, no library tries to use it.
export HF_HUB_OFFLINE := 1
# With it, each of the many processes that the tests start would compile faithcheck again.
unexport PYTHONDONTWRITEBYTECODE
# The models are small. On a busy machine, a thread that spins while it waits takes more time than the work itself.
export OMP_WAIT_POLICY := PASSIVE

# The models are too small for threads to help: two processes with one thread each take half the time. The plugin
# shares torch's threads; NumPy's, and those of the programs that tests start, need the variable. Within the suite a
# process takes neighbouring checks, which share the models of a pair; otherwise a process takes whole modules, which
# share their fixtures. They come in the order of the files: in that of pytest-xdist, those of most tests first, long
# modules of few tests come last, and one process waits for the other.
# Without pytest's plugin for logs, which takes 2 ms a check: torch has many loggers. Logs are in the captured stderr.
CHECKS := -n 2 --dist worksteal -p no:logging
MODULES := -n 2 --dist loadscope --no-loadscope-reorder
invariance test unit slow power kills ray ladder contributing draws: export OMP_NUM_THREADS := 1

# $(call suite,NAME,ARGUMENTS): run pytest, make the pages, also of a red run, and exit with pytest's exit code.
# Old files are removed first. Otherwise a run that stops before its first test would leave them as its results.
define suite
	@mkdir -p $(REPORT) && rm -f $(REPORT)/$(1).*
	@$(BIN)/pytest $(2) --axioms-json=$(REPORT)/$(1).json $(if $(DATA),--data-dir=$(DATA)) $(ARGS); code=$$?; \
	test ! -e $(REPORT)/$(1).json || $(BIN)/faithcheck report $(REPORT)/$(1).json --md --html || code=1; exit $$code
endef

.PHONY: llm catalogue help invariance test unit lint types paper remedies peers bench long draws slow power kills ray mutation alarms ladder torchao architectures docs \
	contributing clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

invariance: $(READY)  ## check implementation invariance over the registry and write the report
	$(call suite,invariance,$(CHECKS) -m invariance)

test: lint types  ## ruff, mypy and the whole test suite; writes the report too
	$(call suite,test,$(MODULES))

unit: $(READY)  ## the unit tests alone
	@$(BIN)/pytest $(MODULES) -m unit tests/unit $(ARGS)

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# mypy cannot follow the editable install, so it reads the unpacked wheel. sed puts the paths of the clone in its messages.
types: $(READY)  ## mypy, strict, on the built wheel
	@rm -rf build/lib build/wheel build/typecheck
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/python -m zipfile -e build/wheel/*.whl build/typecheck
	MYPYPATH=build/typecheck $(BIN)/mypy -p faithcheck --exclude '/faithcheck/tests/' | sed 's#build/typecheck/faithcheck/##'

paper: $(READY)  ## reproduce the paper's tables and figures; DATA=folder with MNIST
	$(call suite,paper,-m paper)

remedies: $(READY)  ## measure the remedies against LOO; ARGS="--paper-model=… --paper-texts=…"
	$(call suite,remedies,-m remedies)

peers: $(READY)  ## verify other libraries' explainers: captum, autolrp, shap, zennit, lxt
	@$(BIN)/pip install --quiet -c constraints.txt -e ".[peers]"
	@$(BIN)/pip install --quiet -c constraints.txt --no-deps zennit lxt
	$(call suite,peers,-m peers)

bench: $(READY)  ## measure the cost of the explainers; ARGS="-k bert"
	$(call suite,bench,-m bench)

slow: $(READY)  ## the tests that take eight seconds or more, or whose file takes 25; CI runs those of tests/unit and tests/integration, but for the whole suite of make contributing
	$(call suite,slow,$(CHECKS) -m slow)

power: $(READY)  ## seeded faults and saboteurs: which checks catch them; writes docs/results/power.md; resumes after a kill
	@$(BIN)/pytest $(CHECKS) -m power tests/experiments $(ARGS); code=$$?; \
	$(BIN)/python -m faithcheck.tests.helpers.power build/power/results.jsonl docs/results/power.md && exit $$code

kills: $(READY)  ## kill 200 runs of align at random moments, and resume each
	@$(BIN)/pytest -s -m kills tests/integration/test_alignment_kills.py $(ARGS)

ray: $(READY)  ## align --ray, check --ray: kills, equal documents, time, plan, memory; ARGS="-k kills"
	@$(BIN)/pytest -s -m ray tests/integration/test_ray_campaign.py tests/integration/test_memory_campaign.py $(ARGS)

mutation: $(READY)  ## mutate the axioms and rules, and see which mutants a test kills; ARGS="--mutants=300 --seed=0"
	@$(BIN)/pip install --quiet -c constraints.txt -e ".[mutation]"
	@$(BIN)/python tests/experiments/mutation/campaign.py $(ARGS)

alarms: $(READY)  ## look for false alarms: correct explainers over seeds, types and threads; ARGS="--seeds=20"
	@$(BIN)/python tests/experiments/false_alarms.py $(ARGS)

ladder: $(READY)  ## bfloat16, float16 and int8: false alarms over seeds, and wrong rules that are found; resumes after a kill
	@$(BIN)/python tests/experiments/ladder_of_types.py $(ARGS)

# Beside the environment: a transformers that finds torchao imports it in every process.
torchao: $(READY)  ## explainers on models that torchao quantised; installs it into build/torchao
	@$(BIN)/pip install --quiet --no-deps --upgrade --target build/torchao -c constraints.txt torchao
	@PYTHONPATH=build/torchao $(BIN)/pytest tests/unit/test_torchao.py $(ARGS)

architectures: $(READY)  ## the explainers on every model class of transformers; writes docs/results/architectures.md; resumes after a kill
	@$(BIN)/python tests/experiments/architectures.py

long: $(READY)  ## Leave-One-Out of texts of 2,000 tokens, error against cost; needs ../shared; resumes after a kill
	@$(BIN)/python tests/experiments/long_texts.py $(ARGS)

llm: $(READY)  ## explainers on a language model, SmolLM2; writes docs/results/language_model.md; needs ../shared; resumes after a kill
	@$(BIN)/python tests/experiments/language_model.py $(ARGS)

draws: $(READY)  ## LOO and gradient × input of 2,000 drawn text models against a plain loop; make test draws 50
	@DRAWS=2000 $(BIN)/pytest -q -n 2 tests/unit/test_drawn_text_models.py $(ARGS)

catalogue: $(READY)  ## write faithcheck/catalogue.json from the registries; VERSION=2027.03 names a new version
	@$(BIN)/python -m faithcheck.catalogue $(VERSION)

docs: $(READY)  ## the documents as a site, with the reference of the public names: build/docs/index.html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

contributing: $(READY)  ## every extension of CONTRIBUTING.md in a copy of the clone, and the fast suite there
	@$(BIN)/pytest -m "integration or slow" tests/integration/test_contributing.py $(ARGS)

clean:  ## remove everything that the other targets made, also .venv
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error No Python 3.11 or newer among $(CANDIDATES). Install one, or name it: make PYTHON=/path/to/python3.11))
	@$(PYTHON) -c "$(RECENT)" || { echo "$(PYTHON) is not Python 3.11 or newer: name one that is, make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@
