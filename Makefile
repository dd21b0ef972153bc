# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DELETE_ON_ERROR:

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CACHE    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rdma-spec
# Not called GOFLAGS, which is the go command's own variable. grpcnotrace keeps gRPC's debug pages, and with them html/template,
# out of the binaries: 4 MB less.
BUILD    := -trimpath -buildvcs=false -tags grpcnotrace
LDFLAGS  := -s -w -X main.version=$(VERSION)
LINTER   := $(CACHE)/bin/golangci-lint-v2.15.0
FUZZTIME ?= 10s

# What runs in the node, and the tests that every runtime has to pass.
NODE     := bin/rdma-node --timeout 30m
IN_PAIR  := $(NODE) --cpus 1
SMOKE    := ^Test(DeviceSignal|AnnotationInjects|Refusals|NonRoot|IPCLockForEveryUser|Validator)$$

export CGO_ENABLED = 0

.PHONY: help build arm64 demo node test deps unit race fuzz e2e lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## static binaries of nri-rdma and rdma-spec in bin/
	go build $(BUILD) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/nri-rdma ./cmd/rdma-spec

arm64: ## the same for arm64, in bin/arm64/
	GOARCH=arm64 go build $(BUILD) -ldflags '$(LDFLAGS)' -o bin/arm64/ ./cmd/nri-rdma ./cmd/rdma-spec

demo: bin/rdma-node build ## the main job, told on a real RDMA node that boots in QEMU
	@go build -o bin/ ./test/demo
	@bin/rdma-node --parts main $(if $(MAKE_TERMOUT),--env DEMO_COLOR=1) --timeout 15m -- bin/demo

node: bin/rdma-node build ## an interactive shell on that node
	@bin/rdma-node --shell

test: build arm64 unit race fuzz e2e ## all tests (needs root for the node)

# What the tests need of Debian's packages beside what the node installs for itself: a C compiler for the race detector, and systemd-analyze.
deps:
	@command -v gcc systemd-analyze >/dev/null && [ "$$(command -v gcc systemd-analyze | wc -l)" = 2 ] || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev systemd; }

unit: deps ## tests that need no node
	go vet -tags node,mutation ./...
	go test -count=1 ./...
	go test -count=1 -tags mutation -run TestMutations ./plugin/policy

race: deps ## the same tests under the race detector
	CGO_ENABLED=1 go test -race -count=1 ./...

fuzz: ## every fuzz target, $(FUZZTIME) each
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "fuzz $$target"; go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=10x ./$$(dirname $$file); \
	  done; done

# Two nodes at a time, with a CPU each, take two thirds of the time on two cores that they take one after the other with two CPUs.
# Where clients press on a containerd that comes up within seconds, the node has both CPUs and the host to itself.
e2e: bin/rdma-node bin/e2e.test build ## tests on the real node
	bin/rdma-node --parts all --timeout 5m -- true # installs and builds what is missing, before several want it
	go test -tags node -count=1 ./test/node/...
	@$(MAKE) --no-print-directory node-faults
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(PAIRED)

PAIRED     := node-kubernetes node-main node-runtimes node-service
FAULTS     := ^Test(ContainerdRestarts|PluginKilled)
CLUSTER    := ^Test(Kubelet|Cluster)
.PHONY: node-faults $(PAIRED)
node-faults $(PAIRED): bin/rdma-node bin/e2e.test build
node-faults: # the plugin and containerd die, again and again
	$(NODE) -- bin/e2e.test -test.v -test.run '$(FAULTS)'
node-kubernetes: # with a kubelet, and with an API server
	$(IN_PAIR) --parts all -- bin/e2e.test -test.v -test.run '$(CLUSTER)'
node-main: # all else, on the main runtime
	$(IN_PAIR) -- bin/e2e.test -test.v -test.skip '$(FAULTS)|$(CLUSTER)|^TestCRIO'
node-runtimes: # what is enough to know that another runtime does its part
	$(IN_PAIR) -- bin/e2e.test -test.v -test.run '$(SMOKE)' -containerd 1.7.35
	$(IN_PAIR) -- bin/e2e.test -test.v -test.run '$(SMOKE)' -containerd 1.7.35 -runtime crun
	$(IN_PAIR) -- bin/e2e.test -test.v -test.run '$(SMOKE)' -containerd 2.3.7
	$(IN_PAIR) -- bin/e2e.test -test.v -test.run '^TestGenerate$$' -containerd 1.6
	$(IN_PAIR) -- bin/e2e.test -test.v -test.run '^TestCRIO'
node-service: # under systemd
	$(IN_PAIR) -- env -C deploy ../bin/deploy.test -test.v -test.run '^TestNode'

.PHONY: bin/rdma-node bin/e2e.test
bin/rdma-node:
	@go build -o bin/ ./test/node/cmd/rdma-node
bin/e2e.test:
	@go test -c -tags node -o bin/e2e.test ./test/e2e
	@go test -c -tags node -o bin/deploy.test ./deploy
	@go build -o bin/ ./test/e2e/locker

lint: $(LINTER) ## go vet and golangci-lint
	go vet -tags node,mutation ./...
	$(LINTER) run ./...

$(LINTER):
	mkdir -p $(@D)
	GOBIN=$(@D)/tmp go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(@D)/tmp/golangci-lint $@

clean: ## remove what was built here; the cache in ~/.cache/rdma-spec stays
	rm -rf bin
