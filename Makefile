# SPDX-License-Identifier: Apache-2.0
#
# make help lists the targets.

SHELL      := /bin/bash
GO         ?= go
BIN        := $(CURDIR)/bin
VERSION    ?= $(shell sed -n 's/^appVersion: //p' charts/usher/Chart.yaml)
CONFORMANCE := test/registries
GENERATE   := $(GO) tool -modfile=tools/generate/go.mod controller-gen
LINT       := $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint

export CGO_ENABLED ?= 0
export GOWORK := off

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Bring up a real API server and take CloneSets and Deployments through their lives under traffic.
	@echo "Compiling the demo: a minute the first time."
	@$(GO) -C test run ./cmd/demo -page $(CURDIR)/demo.html $(ARGS)

.PHONY: soak
soak: ## Send a million requests in an hour while workloads change and faults happen (ARGS='-requests 50000 -for 4m -seed 1'; ARGS=-ha: on three etcds and two API servers).
	@echo "Compiling the soak: a minute the first time."
	@$(GO) -C test run ./cmd/soak $(ARGS)

.PHONY: upgrade
upgrade: ## Upgrade Usher from the release before, and go back, in the middle of rollouts under traffic (needs git's history).
	@echo "Compiling the upgrades: a minute the first time."
	@$(GO) -C test run ./cmd/upgrade $(ARGS)

.PHONY: exits
exits: ## Count the requests that a workload loses on each way out, in your cluster (docs/what-you-lose.md), or rehearse it.
	@echo "Compiling the measurement: a minute the first time."
	@$(GO) -C test run ./cmd/exits $(ARGS)

.PHONY: e2e
e2e: ## Play stories with real containers on a real node; needs root on Debian (docs/reliability.md).
	@echo "Compiling the stories: a minute the first time."
	@$(GO) -C test run ./cmd/e2e $(ARGS)

.PHONY: test test-units test-tools test-stories test-sim test-demo
# Test binaries are linked each time; without symbols that takes a third less. Vet is a part of
# make check's lint.
TEST := $(GO) test -vet=off -ldflags='-s -w'
RACE := CGO_ENABLED=1 $(TEST) -race -timeout 40m
# Packages without a goroutine, one that reads the whole source, and the one that counts the bytes of a cache, for which the race detector is only slow.
PURE := internal/(cloneset/(plan|lifecycle|inplace|revision)|registration/(plan|listing)|forecast|view|podcache|rules|convert)$$
test: ## Run all tests with the race detector, on a control plane that is built on the first run.
	@$(GO) -C test run ./cmd/devcluster -build
	@$(MAKE) --no-print-directory -j2 test-stories test-units test-sim test-tools
	@$(MAKE) --no-print-directory test-demo
test-units:
	$(RACE) $$($(GO) list ./... | grep -vE '$(PURE)')
	$(TEST) $$($(GO) list ./... | grep -E '$(PURE)')
test-tools:
	cd tools/image && $(TEST) ./...
	cd tools/chart && $(TEST) ./...
	cd cmd/kubectl-usher && $(TEST) ./...
test-stories: # the longest first, three packages and four stories at a time: they mostly wait
	cd test && $(RACE) -p 3 -parallel 4 ./integration/... $$($(GO) list ./... | grep -vE '/test/(sim|demo)')
test-demo: # by itself: it counts requests that are lost, and starved callers lose some
	cd test && $(RACE) ./demo
test-sim: # some seeds with the race detector; all of them and the mutants would take five times as long with it
	cd test && GOGC=1600 GOMEMLIMIT=1GiB $(TEST) -timeout 30m ./sim/...
	cd test && GOGC=400 $(RACE) ./sim/... -seeds 20 -skip 'Mutants|Explore|Anywhere|Losing'

.PHONY: browser
browser: docs ## Look at the page and the documentation in Debian's headless Chromium, fetched on the first run and not installed (docs/testing.md).
	$(GO) -C test/browser test -count=1 -timeout 5m -v ./...

.PHONY: versions
versions: ## Play the stories on the older supported versions of Kubernetes, built from source on the first run.
	@tools/versions $(ARGS)

.PHONY: quick
quick: ## Vet, unit tests, the explorer's small models, and lint of what is not committed: a minute with warm caches.
	$(GO) vet ./...
	$(GO) test ./...
	$(GO) -C test test ./sim -run 'TestExplore|TestGolden'
	$(LINT) run --new-from-rev HEAD ./...

.PHONY: registries
registries: ## Run the connectors against real registry servers, fetched or built on the first run.
	@echo "The first run fetches and builds servers: about ten minutes on two cores."
	$(GO) -C $(CONFORMANCE) test -count=1 -timeout 60m ./...

.PHONY: sim
SEEDS ?= 10000
sim: ## Run SEEDS simulated schedules of each controller with faults (10,000 take about twelve minutes on two processors).
	GOGC=800 GOMEMLIMIT=2GiB $(GO) -C test test -p 1 ./sim ./sim/operator -run '^(TestSeeds|TestSimulation)$$' -seeds $(SEEDS) -timeout 12h -v

.PHONY: explore
STATES ?= 1000000
explore: ## Visit every state of all the explorer's models, at most STATES per model (takes some minutes).
	$(GO) -C test test ./sim -run TestExplore -deep -states $(STATES) -timeout 12h -v

.PHONY: fuzz
FUZZTIME ?= 1m
fuzz: ## Run each fuzz target for FUZZTIME.
	@grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z]+' internal | sort | sed 's|/[^/]*:func | |' | while read -r dir name; do \
		$(GO) test ./$$dir -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) || exit 1; done

.PHONY: bench
bench: ## Run the benchmarks of the planners, and of a whole pass.
	$(GO) test ./internal/cloneset/plan ./internal/cloneset ./internal/registration/plan -run '^$$' -bench . -benchmem

.PHONY: bench-compare
bench-compare: ## Compare them with those of the release before, by benchstat; needs git's history.
	tools/bench-compare

.PHONY: measure
measure: ## Measure Usher with simulated containers, and with ARGS=-registries=etcd,consul the operator (docs/performance.md).
	@$(GO) -C test run ./cmd/measure $(ARGS)

.PHONY: build
build: ## Build usher into bin/.
	$(GO) build -tags=grpcnotrace -trimpath -o $(BIN)/usher ./cmd/usher

.PHONY: plugin
plugin: ## Build the kubectl plugin, kubectl usher, into bin/ (docs/plugin.md).
	$(GO) -C cmd/kubectl-usher build -trimpath -ldflags='-X main.version=$(VERSION)' -o $(BIN)/kubectl-usher .
	ln -sf kubectl-usher $(BIN)/kubectl_complete-usher

.PHONY: plugin-release
plugin-release: ## Build the plugin's archives for all platforms, their checksums and its krew manifest in bin/plugin.
	@$(GO) run ./tools/plugin -root $(CURDIR) -out $(BIN)/plugin -version $(VERSION)

.PHONY: docs
docs: ## Build the documentation site in bin/docs, without network once modules are there (Hugo compiles for minutes the first time).
	@$(GO) run ./tools/docs

.PHONY: image
image: ## Build Usher's image for amd64 and arm64 in bin/image, without Docker (ARGS='-push HOST/REPO:TAG' uploads it).
	@echo "Compiling Usher for two platforms: some minutes the first time."
	@$(GO) -C tools/image run . -root $(CURDIR) -out $(BIN)/image -version $(VERSION) $(ARGS)

.PHONY: generate
generate: ## Regenerate deep copies, CRDs, RBAC, the chart's copies of them, dist/ and the list of stories' words.
	$(GENERATE) object:headerFile=tools/boilerplate.go.txt paths=./api/...
	$(GENERATE) crd:crdVersions=v1 paths=./api/... output:crd:dir=config/crd
	$(GENERATE) rbac:roleName=usher-cloneset paths=./internal/cloneset/... output:rbac:dir=config/rbac/cloneset
	$(GENERATE) rbac:roleName=usher-registration paths=./internal/registration output:rbac:dir=config/rbac/registration
	$(GENERATE) rbac:roleName=usher-hook-keys paths=./internal/registration/plan output:rbac:dir=config/rbac/hook-keys
	$(GENERATE) rbac:roleName=usher-finish paths=./internal/registration/finishing output:rbac:dir=config/rbac/finish
	$(GENERATE) rbac:roleName=usher-evictions paths=./internal/registration/responder output:rbac:dir=config/rbac/evictions
	$(GENERATE) rbac:roleName=usher-endpointslices paths=./internal/registration/registry/endpointslice output:rbac:dir=config/rbac/endpointslices
	$(GENERATE) rbac:roleName=usher-targetgroupbindings paths=./internal/registration/registry/awstargetgroup output:rbac:dir=config/rbac/targetgroupbindings
	$(GENERATE) rbac:roleName=usher-networkendpointgroups paths=./internal/registration/registry/gcpneg output:rbac:dir=config/rbac/networkendpointgroups
	$(GENERATE) rbac:roleName=usher-guard paths=./internal/guard/... output:rbac:dir=config/rbac/guard
	$(GENERATE) rbac:roleName=usher-access paths=./internal/access output:rbac:dir=config/rbac/access
	$(GO) -C tools/chart run . -root $(CURDIR)
	$(GO) run ./tools/words -write

.PHONY: words
words: ## List the words that steps of stories can begin with (docs/stories.md).
	@$(GO) run ./tools/words

.PHONY: check
check: ## Check that generated files, formatting, modules and links are up to date, and lint.
	tools/check-generated
	@$(MAKE) --no-print-directory docs
	$(LINT) run ./...
	cd test && $(LINT) run --config ../.golangci.yml ./...
	cd tools/image && $(LINT) run --config ../../.golangci.yml ./...
	cd cmd/kubectl-usher && $(LINT) run --config ../../.golangci.yml ./...
	cd tools/chart && $(LINT) run --config ../../.golangci.yml ./...
	cd test/browser && $(LINT) run --config ../../.golangci.yml ./...
	cd $(CONFORMANCE) && $(LINT) run --config ../../.golangci.yml ./...

.PHONY: up
up: ## Run a development cluster until Ctrl-C (ARGS=--usher: with Usher and its guard; ARGS=--ha: three etcds, two API servers; docs/devcluster.md).
	@$(GO) -C test run ./cmd/devcluster $(ARGS)
