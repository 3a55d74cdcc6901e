# Every target installs its requirements: a virtual environment from PyPI, and Java from PyPI if the machine has none.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
RUN = JAVA_HOME="$$($(BIN)/python tools/java_home.py)" PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python

# Tracing makes tests of the protocol several times slower. These tests alone reach every branch of the protocol.
TRACED := tests/protocol tests/golden tests/readers tests/security/test_forged_logs.py \
	$(addprefix tests/pipeline/test_,announcement.py forged_rewrites.py gaps.py publish.py reprocess.py run.py store_failures.py)
PYTEST = $(RUN) -m pytest -n 2 --dist worksteal
# Tests of one file share the servers of the file.
BY_FILE = $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The longest files first, so that both workers end at the same time.
LONG := tests/integration/test_orders_dag.py tests/integration/test_cluster.py tests/integration/test_delta.py
INTEGRATION = $(LONG) $(filter-out $(LONG),$(wildcard tests/integration/test_*.py))

# These tests run a whole deployment each, which needs both cores.
ALONE := tests/prove tests/chaos tests/airflow_chaos

# Tests of races: each varies the timing in many rounds.
RACES = in_every_round or two_concurrent_publish or late_publisher or killed_and_stopped_at_random

# Without cached bytecode, each process compiles every module that it imports, Airflow and the rewritten tests included.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test slow check page fresh-page docs integration prove chaos bench release clean

help:  ## list the targets
	@grep -E '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; found " + sys.version.split()[0] + ". Do: make PYTHON=/path/to/python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready

# JVMs start in half the time with an archive of the classes that Spark loads.
.venv/spark.jsa: .venv/ready
	$(RUN) -m tools.class_archive $@

demo: .venv/spark.jsa  ## run the quickstart DAG on a year of flights, kill it twice, and check every row (3 minutes on two cores)
	@$(RUN) -m demo.quickstart

test: .venv/ready  ## lint, types, architecture, and the fast tests; ARGS=tests/connectors/delta runs all tests of a folder that need no servers
	$(MAKE) --no-print-directory -j 2 check .venv/spark.jsa
ifdef ARGS
	$(PYTEST) -m 'not prove and not integration' $(ARGS)
else
	$(PYTEST) -m 'not slow and not prove' $(TRACED) --cov=airflow_provider_streamsem.protocol --cov-report=term:skip-covered --cov-fail-under=100
	$(PYTEST) -m 'not slow and not prove and not integration' tests $(TRACED:%=--ignore=%)
endif

slow: .venv/spark.jsa  ## the tests on Spark and on Airflow in this machine, and long enumerations of faults
	$(PYTEST) -m 'slow and not prove and not integration' tests

check: .venv/ready  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

PAGE := airflow_provider_streamsem/web/page/index.html

ui/node_modules/ready: ui/package.json ui/package-lock.json
	cd ui && npm ci --silent
	touch ui/node_modules/ready

$(PAGE): .venv/ready ui/node_modules/ready $(shell git ls-files ui) $(wildcard airflow_provider_streamsem/web/*.py)
	$(BIN)/python -m tools.api_description
	cd ui && npm run --silent client && npm run --silent check && npm run --silent test && npm run --silent build
	$(BIN)/python -m tools.page_sources > airflow_provider_streamsem/web/page/sources.sha256

page: $(PAGE)  ## check, test and build the page of the web view, if its sources have changed; commit the result; needs Node.js 20.19 or newer

fresh-page:  ## build the page, and fail if it differs from the committed one
	touch ui/package.json
	$(MAKE) --no-print-directory page
	git diff --stat --exit-code -- airflow_provider_streamsem/web/page ui/openapi.json

integration: .venv/spark.jsa page  ## tests on real servers: Kafka, an S3 server (S3=minio selects MinIO), databases, queues, a Spark cluster, Spark Connect, and a browser
	$(RUN) -m tests.integration.parts.install $${S3:-versitygw}
	$(BY_FILE) -m 'integration and not prove' --durations 15 $(INTEGRATION) $(ARGS)

prove: .venv/spark.jsa  ## the long tests: real Spark killed at random, a real scheduler, new random examples for the property tests
	$(RUN) -m tests.integration.parts.install
	$(PYTEST) -m 'prove and not integration' tests/simulation tests $(ALONE:%=--ignore=%)
	$(BY_FILE) -m 'prove and integration' tests/integration
	$(RUN) -m pytest -m prove $(ALONE)
	STREAMSEM_ROUNDS=50 $(BY_FILE) -m 'not prove' -k '$(RACES)' tests/connectors tests/processes tests/integration
	HYPOTHESIS_PROFILE=new $(PYTEST) tests/protocol

chaos: .venv/spark.jsa  ## inject random faults into a real Kafka, S3 and Spark: ARGS="--subject all --faults 20"; into a real Airflow: ON=airflow_chaos ARGS="--database postgres"
	$(RUN) -m tests.integration.parts.install
	$(RUN) -m tests.$${ON:-chaos} $(ARGS)

docs: .venv/ready  ## build the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: .venv/spark.jsa  ## run the benchmarks, print tables, and store the results, tables and plots of the documentation
	$(RUN) -m benchmarks $(ARGS)
	$(RUN) -m tools.benchmark_page
	$(RUN) -m tools.plots

release: .venv/ready  ## build the distributions, check their contents and metadata, and try the wheel in an empty environment
	$(RUN) -m tools.release

clean:  ## remove all files that the targets created
	rm -rf .venv .parts .demo ui/node_modules build dist *.egg-info .coverage* .hypothesis .pytest_cache .mypy_cache .ruff_cache
