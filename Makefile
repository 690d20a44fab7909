# Every target sets up what it needs: system packages when root, the rest in .venv, C in build/.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/build/tools:$(PATH)
MESON_DIR := build/meson
DEMO_ARGS ?=
PYTEST_ARGS ?=
GPU_ARGS ?=
FAULTS_ARGS ?=
# Tests start hundreds of processes, none of which should compile our modules again.
unexport PYTHONDONTWRITEBYTECODE
# Lanes of `make test`, and what runs beside them: most tests wait. Two processors are enough.
LANES ?= 6
BESIDE := packaging/development/beside.sh 'lint=packaging/development/lint.sh'
# Schemas of Kubernetes, which tests of the chart compare with.
VALIDATE := $(BIN)/python -c 'import kubernetes_validate' 2>/dev/null || $(BIN)/pip install -q --disable-pip-version-check --require-hashes -r packaging/development/requirements-packages.txt

# Two `make` of one checkout wait for each other where they write.
ALONE := mkdir -p build && flock build/.lock

# Sources of what `make chart` writes, which git ignores, and its stamp beside it.
CHART_MADE := packaging/kubernetes/.made
CHART_SOURCES := simgpu/node/model.c packaging/helm/sluice/values.yaml packaging/grafana/sluice-node.json packaging/prometheus/sluice-alerts.yaml \
	$(shell find packaging/generate queuecontroller sluicecommon -name '*.py' -o -name '*.sh')

.DEFAULT_GOAL := help
.PHONY: help demo build check test test-peers test-clients test-full test-floor test-oldest test-faults test-page screens lint bench fuzz soak soak-strangers gpu-check gpu-archive docs chart install packages image test-packages test-cluster test-operators cluster-up cluster-down cluster-programs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: build ## start a simulated two-GPU node and run the main job on it, from end to end
	$(BIN)/python -m tests.demo $(DEMO_ARGS)

build: $(VENV)/.ready $(CHART_MADE) ## compile the C, build the wire descriptors, put `sluice` into .venv/bin
	@$(ALONE) packaging/development/compile.sh $(MESON_DIR) build

check: build ## from minute to minute: lint, unit and property tests
	@$(BESIDE) -- $(BIN)/python -m pytest -q -n 2 tests/unit tests/properties $(PYTEST_ARGS)

# Tests say which tool they lack, so that no failed download ends this. helm is built beside our own C, the first time.
test: ## everything that fits in CI: lint, unit, property, ABI, interposer, integration
	@packaging/development/beside.sh 'helm=packaging/fetch/helm-tool.sh >/dev/null || true' -- $(MAKE) --no-print-directory build
	-@packaging/fetch/promtool-tool.sh >/dev/null
	-@$(VALIDATE)
	@$(BESIDE) -- $(BIN)/python -m pytest -n $(LANES) $(PYTEST_ARGS)

test-peers: build ## against the real code of others: the CDI library, the kubelet's device and DRA managers; needs Go
	SLUICE_PEERS_REQUIRED=1 $(BIN)/python -m pytest tests/peers -m peers -s $(PYTEST_ARGS)

test-clients: build ## programs of other people, unmodified, bare and in a grant; writes build/clients.json
	$(BIN)/python -m pytest -m "" tests/clients -s $(PYTEST_ARGS)

test-full: build lint ## the same, with the long torture and fuzz runs
	@packaging/development/floor.sh full
	$(BIN)/python -m pytest -m 'not packages and not cluster and not operators and not clients' --hypothesis-profile explore $(PYTEST_ARGS)

test-floor: build ## with the oldest libraries it runs with (Debian 12's), in .venv-floor; needs Python 3.11
	@packaging/development/floor.sh full $(PYTEST_ARGS)

test-oldest: build ## what test-floor tests of the wire, the pages and the manifests: a minute, as CI runs it
	@packaging/development/floor.sh quick $(PYTEST_ARGS)

soak-strangers: build ## 1,000 clients without credentials at every port of the controller for 60 s, honest reviews beside them
	STRANGERS_S=60 STRANGERS=1000 $(BIN)/python -m pytest -q -s -m "" -p no:xdist tests/cluster/api_only/users/test_strangers.py

test-faults: build ## every case of tests/faults/list/cases.py beside 2,000 kills; writes build/faults.json
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

test-page: build ## the web page in a real Chromium, pictures of it in build/screens; installs Debian's Chromium as root
	$(BIN)/python -m pytest -m 'page and not cluster' tests/page $(PYTEST_ARGS)

screens: build ## docs/screens anew: the page of 50 nodes in mode kubernetes, beside a real API server; needs Go the first time
	$(BIN)/python -m pytest -m 'page and cluster' tests/page $(PYTEST_ARGS)
	cp build/screens/kubernetes/*.png docs/screens/

lint: $(VENV)/.ready ## ruff, mypy --strict, import contracts, clang-format, clang-tidy
	@packaging/development/lint.sh

bench: build ## ratios measured in one run: with and without us; writes build/bench.json
	$(BIN)/python -m tests.bench

fuzz: build ## ten minutes over every reader of untrusted input; writes build/fuzz.json; needs clang
	$(BIN)/python -m tests.fuzz --seconds $${FUZZ_S:-600}

soak: build ## the node under random load and kills for SOAK_S seconds (default 14400): nothing lost, nothing that grows
	$(BIN)/python -m tests.soak --seconds $${SOAK_S:-14400}

gpu-check: build ## the same promises on a real GPU, in 9 minutes; needs one
	tests/gpu/run $(GPU_ARGS)

gpu-archive: build ## one archive that measures on a machine with a GPU, without network: build/sluice-gpu.tar.gz
	$(BIN)/python packaging/release/gpu_archive.py build/sluice-gpu.tar.gz

docs: $(VENV)/.ready ## write what is generated from the code: docs/reference
	$(BIN)/python packaging/generate/reference.py configuration.md >docs/reference/configuration.md
	$(BIN)/python packaging/generate/commands.py >docs/reference/commands.md
	$(BIN)/python packaging/generate/metrics.py metrics-queue.md >docs/reference/metrics-queue.md
	$(BIN)/python packaging/generate/metrics.py metrics-node.md >docs/reference/metrics-node.md

chart: $(VENV)/.ready ## complete packaging/helm/sluice and packaging/kubernetes, which helm and kubectl read in a checkout
	@helm=$$(packaging/fetch/helm-tool.sh || true); $(ALONE) env PYTHON="$(CURDIR)/$(BIN)/python" packaging/generate/chart.sh "$$helm"
	@touch $(CHART_MADE)

# Only when a source is newer: `make build` is for from minute to minute.
$(CHART_MADE): $(VENV)/.ready $(CHART_SOURCES)
	@$(ALONE) env PYTHON="$(CURDIR)/$(BIN)/python" packaging/generate/chart.sh
	@touch $@

# Without the virtual environment: what is installed must find the system's Python.
SYSTEM_PATH := /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PREFIX ?= /usr
install: ## install Sluice below DESTDIR, for PREFIX (default /usr); for packagers
	@test -f build/system/build.ninja || PATH=$(SYSTEM_PATH) meson setup build/system -Dsystem=true \
		--prefix=$(PREFIX) --sysconfdir=/etc --buildtype=release >build/setup-system.log 2>&1 || { cat build/setup-system.log; exit 1; }
	@PATH=$(SYSTEM_PATH) DESTDIR="$(DESTDIR)" meson install -C build/system --quiet

packages: $(VENV)/.ready $(CHART_MADE) ## deb, rpm, bills of materials and the OCI image, into build/packages; on Debian, the image as root
	@packaging/release/packages.sh build/packages

image: ## the OCI image alone, into build/image/image.tar, for a cluster to try it on; on Debian, as root
	@packaging/release/deb.sh build/image/deb
	@packaging/release/image.sh build/image

test-packages: packages ## install, boot, upgrade and purge the packages in a fresh Debian 12; needs root
	@$(VALIDATE)
	@packaging/fetch/helm-tool.sh >/dev/null
	$(BIN)/python -m pytest tests/packages/test_chart{,_rendered,_hooks}.py $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m packages tests/packages $(PYTEST_ARGS)

# KUBERNETES=1.30 is another minor, CLUSTER=DIR another directory: a cluster beside the first.
CLUSTER ?= build/cluster/default
KUBERNETES ?=
cluster-up: build ## a Kubernetes of its own with simulated GPUs, in private namespaces; the first time builds it; needs root and Go
	@SLUICE_CLUSTER_DIR=$(CLUSTER) SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.cluster up

cluster-down: $(VENV)/.ready ## end it, and remove what it wrote
	@SLUICE_CLUSTER_DIR=$(CLUSTER) SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.cluster down

test-cluster: build ## image and chart on that Kubernetes, as a user installs them; writes build/cluster.json; needs root and Go
	SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.cluster.run $(PYTEST_ARGS)

test-nodes: build ## the same with two nodes: a queue whose controller hangs, drains, a lost node, the owner's manifests
	SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.cluster.run --two-nodes $(PYTEST_ARGS)

test-operators: build ## job frameworks with their real operators, which are built the first time; needs root and Go
	SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m pytest -m operators tests/cluster/operators -s $(PYTEST_ARGS)

cluster-programs: $(VENV)/.ready ## what test-cluster builds with Go the first time, before it is run; needs Go
	@SLUICE_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.cluster.run --go-only

clean: ## remove what was built, keep .venv
	rm -rf build

$(VENV)/.ready: pyproject.toml packaging/development/setup.sh
	@$(ALONE) packaging/development/setup.sh $(VENV)
	@touch $@
