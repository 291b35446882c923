# The targets that CI runs. `make help` lists them.

GO        ?= go
BIN       := bin
VERSION   ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo unknown)
REVISION  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BRANCH    ?= $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
# The date of the commit, so that the same commit gives the same binary.
BUILDDATE ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
VPKG      := github.com/prometheus/common/version
LDFLAGS   := -s -w -X $(VPKG).Version=$(VERSION) -X $(VPKG).Revision=$(REVISION) -X $(VPKG).Branch=$(BRANCH) \
             -X $(VPKG).BuildDate=$(BUILDDATE) -X $(VPKG).BuildUser=make

.PHONY: help build demo quick test race clients conformance e2e hunt hunt-short hunt-convict soak mutants mutants-sim mutate sim explore model replay chart lint fuzz bench bench-compare bench-big bench-peers image man release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build the binary into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/unlocker ./cmd/unlocker

demo: ## Run the daemon on an embedded etcd with simulated workers
	$(GO) run ./cmd/unlocker-demo

# The three differ in what has the race detector; see .ci/test.sh, also for RAPID_SEED.
quick: ## Run the tests that need no etcd (30 s)
	GO='$(GO)' .ci/test.sh quick

test: ## Run the tests (4 min)
	GO='$(GO)' .ci/test.sh test

race: ## Run the tests, all with the race detector
	GO='$(GO)' .ci/test.sh race

clients: ## Test the Python and Ruby clients with a real etcd and the daemon
	clients/run.sh

# The drivers of our clients, in Python and Ruby as packages, and of one that was written from docs/protocol.md alone.
PACKAGES = $(BIN)/packages
DRIVERS = "--strict $(BIN)/conformance-go" "--strict env PYTHONPATH=$(PACKAGES)/python python3 -W error $(PACKAGES)/conformance.py" \
          "--strict env GEM_PATH=$(PACKAGES)/ruby ruby -w $(PACKAGES)/conformance.rb" \
          "node cmd/unlocker-conformance/testdata/client.js"
conformance: ## Judge all clients by what they do in etcd (2 min)
	$(GO) build -o $(BIN)/ ./cmd/unlocker-conformance
	$(GO) build -o $(BIN)/conformance-go github.com/etcd-unlocker/unlocker/mutex/internal/conformance
	rm -rf $(PACKAGES)
	clients/package.sh $(PACKAGES)
	python3 -m pip install --quiet --root-user-action ignore --no-index --target $(PACKAGES)/python $(PACKAGES)/*.whl
	gem install --quiet --silent --local --no-document --install-dir $(PACKAGES)/ruby $(PACKAGES)/*.gem
	cp clients/python/conformance.py clients/ruby/conformance.rb $(PACKAGES) # away from the sources, to which they fall back
	@cmd/unlocker-conformance/all.sh $(BIN)/unlocker-conformance $(DRIVERS)

# E2E has flags of go test, such as -run.
e2e: ## Run the tests with real programs (etcd of several versions, Prometheus, Icinga, …)
	$(GO) test -count=1 -timeout 60m -parallel 8 -tags e2e ./e2e $(E2E)

# HUNT_SEED repeats a run, HUNT_TIME sets its duration; see hunt/hunt_test.go.
HUNT = $(GO) test -count=1 -timeout 60m -tags hunt -v ./hunt
hunt: ## Search for broken promises on real etcd under faults (45 min)
	$(HUNT)

hunt-short: ## The same for the gate (2.5 min)
	HUNT_TIME=$${HUNT_TIME:-1m} HUNT_SEED=$${HUNT_SEED:-1} $(HUNT)

hunt-convict: ## Take rules out of the daemon, and require that the hunt convicts it (10 min)
	GO='$(GO)' hunt/convict.sh

soak: ## Run a daemon for SOAK_TIME (6h) under faults, and require that what it uses does not grow
	SOAK_TIME=$${SOAK_TIME:-6h} $(GO) test -count=1 -timeout 100h -tags hunt,nightly -v -run '^TestSoak$$' ./hunt

# RULES limits it, to a promise or a rule of docs/rules.yaml: RULES=S3, RULES='S3/a_storm'.
mutants: ## Take each rule of docs/rules.yaml out of the code, and require that its tests fail (30 min)
	$(GO) test -count=1 -timeout 3h -tags nightly -v -parallel 2 -run 'TestMutants/all/$(RULES)' ./docs

mutants-sim: ## Count of which of them SIM_HISTORIES (3,000) random histories of the simulator show nothing (2 h)
	SIM_HISTORIES=$${SIM_HISTORIES:-3000} $(GO) test -count=1 -timeout 12h -tags nightly -v -parallel 2 -run 'TestSimulated/all/$(RULES)' ./docs

# PKG is a directory, RUN limits it to changes: RUN=holds.go:8. PARALLEL is how many are tried at a time.
mutate: ## Change the code of PKG in one place at a time, and require that its tests fail
	MUTATE='$(PKG)' $(GO) test -count=1 -timeout 12h -tags nightly -v -parallel $(or $(PARALLEL),2) -run 'TestMutate/all/$(RUN)' ./hack

# SIM_HISTORIES sets how many, SIM_SERVER_HISTORIES how many on a real etcd, SIM_CONVICT how many a daemon without a rule
# may survive, and SIM_SEED which: 0 for others each time.
sim: ## Run 20,000 random histories of the real daemon on an etcd in memory, and 1,000 on a real one (10 min)
	SIM_HISTORIES=$${SIM_HISTORIES:-20000} SIM_SERVER_HISTORIES=$${SIM_SERVER_HISTORIES:-1000} SIM_CONVICT=$${SIM_CONVICT:-400} \
		$(GO) test -count=1 -timeout 3h -v -run RandomHistories ./internal/sim -rapid.seed=$${SIM_SEED:-1}

# EXPLORE is the number of moves: 1 in make test.
explore: ## Play all histories of small worlds with up to 2 moves (4 min)
	EXPLORE=$${EXPLORE:-2} $(GO) test -count=1 -timeout 60m -v ./internal/sim/explore

# With PATTERN one variant; with STORY=1 its counterexample in words.
model: ## Check the models of the rules with SPIN, and that each rule is needed (15 min)
	docs/model/check.sh $(PATTERN)

# SIM_TRACES sets how many, SIM_SEED which.
replay: ## Replay 400 histories of the real daemon in the model, and of daemons without a rule (5 min)
	SIM_TRACES=$${SIM_TRACES:-400} $(GO) test -count=1 -timeout 60m -tags nightly -v -run TestReplay ./internal/sim

chart: ## Check the Helm chart, and install it on a real Kubernetes API server
	deploy/helm/check.sh
	deploy/helm/install.sh

lint: ## Run golangci-lint, and bound the lines of production Go
	.ci/lines.sh
	golangci-lint run --build-tags e2e,hunt,nightly ./...
	for module in mutex mutex/otel mutex/prom bench/report deploy/release; do (cd $$module && golangci-lint run --allow-parallel-runners ./...) || exit; done

FUZZTIME ?= 20s
fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@set -e; for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
	    (cd $$(dirname $$file) && $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x .); \
	  done; done

bench: ## Run the small benchmarks
	$(GO) test -run '^$$' -short -bench . -benchmem ./internal/... github.com/etcd-unlocker/unlocker/mutex/...

BASE ?= main
bench-compare: ## Compare the small benchmarks with those of the commit BASE (main)
	bench/compare.sh $(BASE)

bench-big: ## Run the measurements that docs/performance.md reports
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m -v ./bench/...

# BENCH_LOCKS limits the number of locks (100,000). It needs redis-server, and builds Consul the first time.
bench-peers: ## Measure unlocker beside its peers in one run: tables, and plots into docs/plots (40 min)
	mkdir -p $(BIN)
	$(GO) test -run '^$$' -bench '^Benchmark(Peers|Uncontended|Handoff)$$' -benchtime 1x -timeout 3h ./bench >$(BIN)/peers.txt || { cat $(BIN)/peers.txt; exit 1; }
	@grep cpu: $(BIN)/peers.txt; $(GO) version; redis-server --version
	@$(GO) -C bench/report run . -plots $(CURDIR)/docs/plots <$(BIN)/peers.txt

# With podman or buildah: BUILDER='buildah bud'. The image layer depends only on the commit if BUILDER sets
# times to SOURCE_DATE_EPOCH: buildah with --timestamp, docker buildx with rewrite-timestamp=true.
BUILDER           ?= docker build
# The tag that the chart uses.
IMAGE             ?= ghcr.io/etcd-unlocker/unlocker:$(shell sed -nE 's/^appVersion: "?([^"]*)"?$$/\1/p' deploy/helm/unlocker/Chart.yaml)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
image: ## Build the container image with BUILDER (docker build)
	$(BUILDER) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --build-arg BRANCH=$(BRANCH) \
	  --build-arg BUILDDATE=$(BUILDDATE) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) -t $(IMAGE) .

man: ## Write the manual pages into bin/man/
	mkdir -p $(BIN)/man
	MAN_DIR=$(CURDIR)/$(BIN)/man SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) test -count=1 -ldflags '$(LDFLAGS)' -run '^TestManualPages$$' ./cmd/unlocker

DIST ?= dist
release: ## Build archives, packages, the image, SBOMs, and checksums into DIST (dist/)
	VERSION='$(VERSION)' REVISION='$(REVISION)' LDFLAGS='$(LDFLAGS)' IMAGE='$(IMAGE)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	  deploy/release/release.sh $(DIST)

clean: ## Remove build output
	rm -rf $(BIN) dist
