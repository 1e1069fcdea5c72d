# make demo      sets everything up in .venv and trains on two local nodes of two ranks each
# make test      sets everything up and runs every test, those on the Slurm cluster in Docker included; ARGS="-k word" or a path chooses
# make test-fast runs what needs neither Docker nor Slurm nor torch and is not slow, in under three minutes: before a commit
# make check-fast is for every edit, in under a minute; make golden, after a new key, renews the documents and files made of it
# make test-slurm runs the tests on Slurm that need no training image on three of its versions: before a release
# make cluster   leaves that cluster up, to try things on
# make docs      makes the site of the documentation

PYTHON ?= python3
BIN := .venv/bin
SHELL_SCRIPTS = .ci/run bench/*.sh containers/*.sh containers/*/*.sh launch/kit/cli/completion.bash launch/scripts/*.sh launch/scripts/*/*.sh launch/scripts/local/* tests/*.sh tests/train/*.sh tests/bash/stubs/* tests/cluster/*.sh tests/cluster/*-stub tests/fakes/* tests/cluster/sid-source tests/cluster/tiny-image

# The image of a container may ask Python to keep nothing that it compiles. pip compiles none of the test extra, so each process would.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test engine bases test-fast test-bash test-oldest-python test-slurm test-ipv6 test-horovod gpu-test coverage mutants check check-fast golden cluster cluster-down bench bench-check docs picture clean

help:
	@sed -n 's/^# //p' Makefile | head -7

demo: .venv/demo
	$(BIN)/kit run train/digits.yaml

# The images that need no Python of ours are begun while there is none yet.
test: .venv/bin/pip
	$(MAKE) --jobs 3 check $(if $(ARGS),engine,bases)
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/run.sh $(ARGS)

# After .venv/bin/pip, which may call apt-get, too.
engine: .venv/bin/pip
	tests/cluster/engine.sh

# Nobody waits here: who needs one calls the same script, waits for this call, and is told what failed.
bases: engine
	tests/cluster/images.sh bases >/dev/null 2>&1 &

test-fast: .venv/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest --numprocesses 3 -m 'not slow' tests/unit tests/images $(ARGS)

test-bash: .venv/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest --numprocesses 2 tests/bash $(ARGS)

# For a person, before a release. The test extra has less for it: what the fast tests do without.
OLDEST ?= python3.9
test-oldest-python:
	PYTHON="$(OLDEST)" tests/venv.sh .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check -e '.[test]'
	PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" .venv-oldest/bin/pytest --numprocesses 2 tests/unit tests/images $(ARGS)

# For a person, before a release: Debian's bookworm has Slurm 22.05, trixie 24.11, sid the newest.
test-slurm: export KIT_CLUSTER_IMAGES = nodes
test-slurm: export KIT_REQUIRE_CLUSTER = 1
test-slurm: .venv/test
	for debian in bookworm trixie sid; do \
	  KIT_CLUSTER_DEBIAN=$$debian KIT_CLUSTER_NAME=$$debian PATH="$(CURDIR)/$(BIN):$$PATH" \
	    $(BIN)/pytest --numprocesses 2 --ignore tests/cluster/engine tests/cluster $(ARGS) || exit; \
	done

# For a person, before a release: on machines that have addresses of IPv6 alone.
test-ipv6: export KIT_CLUSTER_IP = 6
test-ipv6: export KIT_CLUSTER_NAME = ipv6
test-ipv6: export KIT_REQUIRE_CLUSTER = 1
test-ipv6: .venv/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest tests/cluster/test_jobs.py tests/cluster/test_launchers.py tests/cluster/test_programs.py $(ARGS)

# For a person, before a release: compiles Horovod, which takes five minutes, and trains with it on two nodes.
test-horovod: export KIT_TEST_HOROVOD = 1
test-horovod: export KIT_REQUIRE_CLUSTER = 1
test-horovod: .venv/test
	tests/cluster/engine.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest tests/cluster/test_launchers.py -k horovod -rP $(ARGS)

# For a person with NVIDIA GPUs: trains on them, checks what only they show, and writes gpu-report.md.
gpu-test: .venv/test
	$(BIN)/python tests/gpu_report.py $(ARGS)

# For a person, before a release: which lines and branches no test reaches, and which faults no test notices.
coverage: export COVERAGE_FILE = $(CURDIR)/.coverage/data
coverage: .venv/test
	rm -rf .coverage && mkdir .coverage
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/coverage run -m pytest --numprocesses 2 tests/unit tests/images $(ARGS)
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report

mutants: .venv/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/mutants/run.py $(ARGS)

# What needs no running: style, types, shell, and that every test is found. With --jobs, side by side.
CHECKS := $(addprefix check-,style types imports collection shell)
.PHONY: $(CHECKS)
check: $(CHECKS)
$(CHECKS): .venv/test

check-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-types:
	$(BIN)/mypy

check-imports:
	$(BIN)/lint-imports --no-cache

check-collection:
	$(BIN)/pytest --collect-only --quiet --quiet

check-shell:
	$(BIN)/shfmt -i 2 -ci -d $(SHELL_SCRIPTS)
	printf '%s\n' $(SHELL_SCRIPTS) | xargs -P 2 -n 20 $(BIN)/shellcheck --exclude SC1091 # what a file sources is checked by itself

# After an edit. What has to do with keys, options, plans, rendering, causes and documents is tried; ARGS names more.
QUICK = $(addprefix tests/unit/test_,schema.py documentation.py render.py bad_jobs.py profiles.py read_back.py size.py sbatch_lines.py plain_words.py added_runtime.py why.py blame.py mutants.py::test_every_change_still_applies)
check-fast: .venv/test
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest --quiet --numprocesses 2 $(QUICK) $(ARGS)

# What is made of the code and kept beside it; then read `git diff`.
golden: .venv/test
	KIT_UPDATE_GOLDEN=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest --quiet --numprocesses 2 $(addprefix tests/unit/test_,documentation.py render.py bad_jobs.py import.py::test_a_script_becomes_the_job_file_beside_it why.py::test_the_table_of_causes_is_the_code doctor_judges.py::test_the_tables_of_the_document_are_the_code worst_inputs.py recorded_sites.py::test_the_files_of_a_recorded_site phases.py::test_the_picture_in_the_documentation_is_of_the_recorded_run)
	git status --short -- docs tests/golden tests/bad_jobs tests/unit

cluster: .venv/test
	tests/cluster/engine.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/cluster/cluster.sh up
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/cluster/install.sh

cluster-down:
	tests/cluster/cluster.sh down

# Used by a person, not by tests: they want a quiet machine, and the cluster in Docker where a benchmark wants it.
bench: .venv/bench
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/all.py

bench-check: .venv/bench
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/all.py --check

# The site of the documentation, in build/site.
docs: .venv/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "made build/site: open build/site/index.html"

# The README's pictures: of a run, made from one, and of the flow, by Graphviz.
picture: .venv/test
	$(BIN)/python docs/picture.py
	dot -Tsvg docs/flow.dot -o docs/flow.svg

clean:
	rm -rf .venv .venv-oldest runs dist build

.venv/bin/pip:
	PYTHON="$(PYTHON)" tests/venv.sh .venv

# The image's versions of what the demo needs. Python compiles what it loads, which is little of PyTorch's many files.
.venv/demo: .venv/bin/pip pyproject.toml containers/install/requirements-cpu.txt
	@echo "fetching PyTorch and what the programs of train/ need: 250 MB for CPUs, some GB where pip finds PyTorch for GPUs; this takes a few minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c containers/install/requirements-cpu.txt -e '.[train]'
	@touch $@

.venv/test: .venv/demo
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
	@touch $@

.venv/bench: .venv/test
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@
