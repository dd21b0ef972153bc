# Copyright The rdma-spec Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DELETE_ON_ERROR:

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CACHE    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rdma-spec
LDFLAGS  := -s -w -X main.version=$(VERSION)
LINTER   := $(CACHE)/bin/golangci-lint-v2.15.0
SBOM     := $(CACHE)/bin/cyclonedx-gomod-v1.10.0
FUZZTIME ?= 1m

# The command that starts a node. By default, a node has one CPU. On a machine with two cores, running two one-CPU nodes in parallel takes
# only two thirds as long as running two two-CPU nodes one after the other. A cluster needs two CPUs, and so does a node whose containerd
# starts under load. The timeout only ends a test that hangs: on a busy host, a part can take five times as long as on an idle one.
NODE     := bin/rdma-node --timeout 1h --cpus 1

export CGO_ENABLED = 0

# Flags for every build, regardless of the environment, so that programs and tests share compiled packages. The grpcnotrace tag excludes
# gRPC's debug pages and html/template from the binaries, which saves 4 MB. -dwarf=false excludes debugging information, which reduces
# build times by 10%.
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false -tags=grpcnotrace
# Tests that need a node have the node tag in addition to grpcnotrace.
NODETAGS := -tags=grpcnotrace,node

# The compiler and the linter run the garbage collector only if they use more than 2 GiB of memory. As a result, the compiler takes 20% less
# time, and the linter takes a third less.
MEMORY   := GOGC=off GOMEMLIMIT=2GiB
COMPILE  := $(MEMORY) go

.PHONY: help build amd64 arm64 kubectl image notes push sbom packages release demo demo-picture node check update vulnerabilities test test-rest test-all nightly prepare prepare-all parts deps unit release-test configure configure-older histories archives rpm race mutations mutations-random nri flakes handovers fuzz e2e kit churn busy critest bench bench-pods lint clean site site-deps site-why site-test site-archive

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The programs run on nodes, so they are always built for Linux.
PROGRAMS := $(addprefix ./cmd/,nri-rdma rdma-spec rdma-hook)
build: ## build static binaries of nri-rdma, rdma-spec, and rdma-hook in bin/, for this machine's architecture
	GOOS=linux GOARCH=$$(go env GOHOSTARCH) $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS)

amd64: ## build the same binaries as make build, but for amd64, in bin/amd64/
arm64: ## build the same binaries as make build, but for arm64, in bin/arm64/
amd64 arm64:
	GOOS=linux GOARCH=$@ $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/$@/ $(PROGRAMS)

# kubectl rdma contains a client for the API server, and therefore takes a minute to compile for each platform. The tests build it for only
# one platform.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
kubectl: ## build kubectl rdma in bin/kubectl/ for each platform in PLATFORMS
	@rm -rf bin/kubectl
	@for platform in $(PLATFORMS); do export GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
	  $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/kubectl/$${GOOS}_$$GOARCH/ ./cmd/kubectl-rdma || exit; done

# Lists, in the CycloneDX format, every module that the linker included in a program. cyclonedx-gomod reads the list from the program
# itself.
sbom: $(SBOM) amd64 arm64 kubectl ## write a software bill of materials (SBOM) for each program to bin/sbom/
	@rm -rf bin/sbom && mkdir -p bin/sbom
	@for file in bin/amd64/* bin/arm64/* bin/kubectl/*/*; do system=$$(basename $$(dirname $$file)); name=$$(basename $$file .exe); \
	  case $$system in *_*) ;; *) system=linux_$$system ;; esac; \
	  $(SBOM) bin -json -std -noserial -notimestamp -version $(VERSION) -output bin/sbom/$${name}_$$system.cdx.json $$file || exit; done

$(SBOM):
	mkdir -p $(@D)
	GOBIN=$(@D)/tmp $(COMPILE) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
	mv $(@D)/tmp/cyclonedx-gomod $@

# The modification time of every file in an image or a release is the time of the commit. KEY is the file with the OpenPGP key that signs
# the deb and rpm packages.
RELEASE = $(COMPILE) build -C deploy/release -o ../../bin/releaser . && bin/releaser $(1) --version $(VERSION) --date $${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(if $(KEY),--key $(KEY))
image: amd64 arm64 ## build the container image for both architectures, as bin/image (an OCI layout) and as bin/image.tar
	$(call RELEASE,image)

packages: amd64 arm64 ## build a deb and an rpm package for each architecture, in bin/packages
	@rm -rf bin/packages
	$(call RELEASE,packages)

release: amd64 arm64 kubectl sbom ## build all release files in bin/release: image, archives, packages, chart, bills of materials, checksums
	$(call RELEASE,all)

# VitePress renders docs. The lock file sets the version of VitePress. SITE_BASE is the URL path of the site. SITE_VERSION is the version
# that the site documents: a tag, or main.
SITE      := docs/.vitepress
SITE_BASE ?= /
site: site-deps site-why $(SITE)/node_modules/.package-lock.json ## build the documentation as a static site for any web server, in bin/site
	cd $(SITE) && npx vitepress build .. --base $(SITE_BASE)

# Builds the why package as a WebAssembly program for the site's input box, and copies the loader script that matches this Go version. gzip
# compresses the program, because not every server compresses its responses.
site-why:
	@mkdir -p bin/why
	GOOS=js GOARCH=wasm $(COMPILE) build -ldflags '-s -w' -o bin/why/why.wasm ./cmd/internal/why/browser
	gzip -9nf bin/why/why.wasm
	cp "$$(go env GOROOT)/lib/wasm/wasm_exec.js" bin/why/

$(SITE)/node_modules/.package-lock.json: $(SITE)/package-lock.json
	cd $(SITE) && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier

DOCS = rdma-spec_$(VERSION:v%=%)_docs.tar.gz
site-archive: site # add the site to the files of make release
	tar -C bin --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
	  --transform='s,^site,$(DOCS:.tar.gz=),' -c site | gzip -9n >bin/release/$(DOCS)
	cd bin/release && sha256sum $(DOCS) >>SHA256SUMS

notes: ## print the section of CHANGELOG.md whose heading is exactly VERSION
	@awk -v heading='## $(VERSION)' '/^## /{on = $$0 == heading; next} on && /./{found = 1} on; END{exit !found}' CHANGELOG.md || \
	  { echo 'CHANGELOG.md has no section "## $(VERSION)", or the section is empty' >&2; exit 1; }

push: image ## push the image to a registry, with IMAGE=registry.example.com/rdma-spec:v1
	bin/releaser push bin/image $(IMAGE)

demo: bin/rdma-node build ## demonstrate nri-rdma on a real RDMA node that boots on this machine
	@$(COMPILE) build -o bin/ ./test/demo
	@bin/rdma-node --parts main $(if $(MAKE_TERMOUT),--env DEMO_COLOR=1) --timeout 15m -- bin/demo

# Draws the README's picture from the output of a real run. This target needs Node.js.
demo-picture:
	MAKE_TERMOUT=1 $(MAKE) --no-print-directory -s demo | tee bin/demo.txt
	node test/demo/cast.mjs < bin/demo.txt > bin/demo.cast
	npx --yes svg-term-cli@2.1.1 --in bin/demo.cast --out docs/demo.svg --at 200 --no-cursor --padding 15

node: bin/rdma-node build ## open an interactive shell on a real RDMA node that boots on this machine
	@bin/rdma-node --shell

check: deps $(LINTER) ## run linters and unit tests, including the seeds of the fuzz targets (after each change; V=1 lists skipped tests)
	@go run ./test/suite $(VERBOSE) unit=1 configure=1 lint=1

BASE ?= HEAD
update: ## regenerate golden files and pages for packages that have changed since HEAD (with BASE=COMMIT, since that commit)
	@go run ./test/update -base $(BASE)
	@git status --short

# With V=1, the table lists the skipped tests and the reasons for skipping them.
VERBOSE := $(if $(V),-v)

# Each entry contains the name of a part, and the number of places that the part occupies (each core has two). If another part must end
# first, the entry also contains that part's name. The longest part comes first, so that no core is idle at the end. Parts that need no node
# run while the node's kernel compiles. Parts that run a cluster occupy more places, because an API server with only a third of a core
# stalls other programs for many seconds. A node on User Mode Linux (UML) has only one CPU, so a part that elsewhere occupies two places
# occupies only one.
PARTS := prepare=2 race=1 unit=1 node-main=1:prepare nri=1 node-service=1:prepare configure=1:prepare lint=1 mutations=1
REST  := prepare-all=3 $(patsubst %,%:prepare-all,node-daemonset=3 node-restricted=3 site-test=1 node-kubernetes=2 node-configure=1 node-tool=1 configure-older=1 \
  node-faults=2 node-package=1 node-crio=1 node-edges=1 node-upgrade=1 node-pair=2 node-runtimes=1 release-test=1 kit=1)
SUITE_OF = FRESH=yes go run ./test/suite $(VERBOSE) $(if $(filter uml,$(shell bin/rdma-node --parts test --which)),$(subst =2:,=1:,$(1)),$(1))

test: deps ## run all unit tests, and run the main tests on a real node; print a table of the results (needs root)
	FRESH=yes RACED='$(RACE)' go run ./test/suite $(VERBOSE) $(PARTS)

test-rest: deps bin/rdma-node # run the tests of make test-all that make test does not run
	@$(call SUITE_OF,$(REST))

test-all: ## run make test, then all other tests: clusters, CRI-O, Podman and Docker, older versions of containerd, the site, a release
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

nightly flakes handovers: export RDMA_TEST_SEED ?= random
nightly: deps bin/rdma-node ## run tests that take too long for make test-all, with more packages, kernels, runtimes, and repetitions
	@RACE=./... HISTORIES=200 $(call SUITE_OF,prepare-all=3 $(patsubst %,%:prepare-all,race=1 node-policy=3 node-guides=2 node-emulated=1 node-versions=1 \
	  node-dra=1 mutations-random=1 histories=1 archives=1))
	$(MAKE) --no-print-directory flakes handovers busy churn

# Builds everything that make test needs: the programs, the node's main parts, and the node's kernel. The kernel and the Go
# programs compile in parallel.
prepare:
	@$(MAKE) --no-print-directory -j2 parts build bin/e2e.test

parts: bin/rdma-node
	bin/rdma-node --parts test --prepare

# Prepares everything that the other tests need: builds a release and all parts of the node, and installs the browser. The node's root
# file system is an overlay on the host's root file system. A test that runs rdma-spec configure compares the files in /etc before and after
# the run. Therefore, later steps must not install anything on the host.
prepare-all: bin/rdma-node
	@$(MAKE) --no-print-directory site-deps SITE_NEEDS='npm chromium'
	@$(MAKE) --no-print-directory rpm
	@$(MAKE) --no-print-directory -j2 bin/e2e.test build release PLATFORMS=linux/amd64
	bin/rdma-node --parts all --prepare

vulnerabilities: ## use govulncheck, which queries vuln.go.dev, to list known vulnerabilities in the code that the programs call
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...
	cd deploy/release && go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

# Installs the Debian packages that the tests need, in addition to the packages that the node installs. The packages contain a C compiler
# for the race detector, systemd-analyze, strace, udev, an emulator for arm64 programs, Prometheus, and promtool. A test uses strace to kill
# a run at each system call. Prometheus and promtool are installed without their recommended packages.
PROMETHEUS := $(CACHE)/bin/prometheus
deps: $(PROMETHEUS)
	@[ "$$(command -v gcc strace systemd-analyze qemu-aarch64 udevadm | wc -l)" = 5 ] || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev strace systemd qemu-user udev; }

$(PROMETHEUS):
	@mkdir -p $(@D)/tmp && cd $(@D)/tmp && rm -f prometheus_*.deb && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }
	@cd $(@D)/tmp && dpkg-deb --fsys-tarfile prometheus_*.deb | tar x --strip-components 3 ./usr/bin/promtool ./usr/bin/prometheus && \
	  mv promtool prometheus .. && rm prometheus_*.deb

# The site needs Node.js, and the site's tests also need a browser. Each package has the same name as its command.
SITE_NEEDS := npm
site-test: SITE_NEEDS += chromium
site-deps:
	@missing=; for package in $(SITE_NEEDS); do command -v $$package >/dev/null || missing="$$missing $$package"; done; \
	  [ -z "$$missing" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; }

# With FRESH, go test also reruns tests that have passed with the same sources. make test sets FRESH, because the table that make test
# prints counts all tests. The linter runs go vet, so go test skips it.
GOTEST := go test -vet=off -timeout 1h $(if $(SUITE),-v) $(if $(FRESH),-count=1)

# If the node's containerd versions have been built, the tests of these packages run those versions. The other unit tests do not wait for
# the builds.
ASKING := ./cmd/rdma-spec/internal/configure/... ./cmd/rdma-spec/internal/node/runtime
# With MAIN_PARTS, these packages skip tests that need any program other than containerd's main version, for example CRI-O, NVIDIA's
# toolkit, or an older version of containerd.
MAIN_PARTS := RDMA_TEST_PARTS=main

# For the packages in RACED, make test runs the tests only under the race detector. Tests that skip steps under the race detector also run
# without it.
ASK_RACE = $$(grep -rl 'race\.[A-Z]' --include='*_test.go' $(RACED:/...=))
unit: deps ## run the tests that need no node
	$(GOTEST) $$(go list ./... | grep -vxFf <(go list $(ASKING) $(RACED)))
	@[ -z '$(RACED)' ] || { \
	  tests=$$(awk -F '[ (]' '/^func Test/ {name = $$2} /race\.[A-Z]/ {print name}' $(ASK_RACE) | paste -sd '|'); \
	  $(GOTEST) -run "^($$tests)$$" $$(dirname $(ASK_RACE) | sort -u); }

configure: deps ## test that the node's main containerd version accepts the files that rdma-spec configure writes
	$(MAIN_PARTS) $(GOTEST) -skip HistoriesOfANode $(ASKING)

configure-older: # run the tests of make configure, also with NVIDIA's toolkit and older versions of containerd
	$(GOTEST) -skip HistoriesOfANode $(ASKING)
	@$(MAKE) --no-print-directory histories

HISTORIES ?= 12
histories: # test random sequences of changes by people, upgrades, and other tools to a node; RDMA_TEST_SEED=random selects other sequences
	$(GOTEST) -timeout 2h -run HistoriesOfANode ./cmd/rdma-spec/internal/configure -histories $(HISTORIES)

archives: # test the doctor's findings in support bundles from all of the nodes that its tests create
	$(GOTEST) -run Archive ./cmd/rdma-spec/internal/doctor/planted -archives 1000

# deploy/release is a separate module because of its dependencies. go test does not detect changes to files outside the module, so -count=1
# forces a new run.
release-test: deps rpm # test the chart, the image, packages, and all other files of a release
	cd deploy/release && $(GOTEST) -count=1 ./...

rpm: # install the tools that build and read packages, and create package repositories
	@[ "$$(command -v rpm dnf createrepo_c dpkg-scanpackages | wc -l)" = 4 ] || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends rpm dnf createrepo-c dpkg-dev; }

# Packages with long-running or concurrent code. make nightly runs all packages under the race detector.
RACE ?= ./spec/hca ./plugin $(addprefix ./plugin/,breaker inventory limits localrpc podresources policy/inforce registration/... \
  storedspec) $(addprefix ./cmd/,nri-rdma rdma-hook internal/cli $(addprefix rdma-spec/internal/,collect doctor node/...))
race: deps ## run the tests of concurrent code under the race detector
	CGO_ENABLED=1 $(GOTEST) -race $(RACE)

mutations: ## remove each guard of the policy in turn, and check that a row of the attack table fails
	$(GOTEST) -tags mutation -run TestMutations ./plugin/policy

# test/mutants/survivors.tsv lists the mutants that are allowed to survive. If any other mutant survives, the target fails.
MUTATED := ./plugin/policy ./plugin/storedspec ./plugin/registration ./spec/hca \
  $(addprefix ./cmd/rdma-spec/internal/configure/,change editor)
mutations-random: deps ## make 40 random changes to each package in MUTATED, and check that the tests detect each change; SEED selects the changes
	go run ./test/mutants $(if $(SEED),-seed $(SEED)) $(MUTATED)

site-test: site ## test the site in a browser, and write screenshots to bin/log/site
	cd $(SITE) && node --test-reporter=./reporter.mjs site.test.mjs

nri: ## stop and upgrade the plugin under load, with each NRI version that containerd uses
	$(GOTEST) -timeout 20m ./test/nri -args -rounds 3

# flakes starts two busy loops per core. Each loop ends when the shell ends. Because the loops use half of the CPU
# time, the unit and configure parts test four packages per core at once. The nri part mostly waits, so flakes runs four copies of
# this part per core.
FLAKES := 20
flakes: deps ## find flaky tests: run unit, configure, and nri 20 times each, with two busy loops per core
	@for loop in $$(seq $$((2 * $$(nproc)))); do while kill -0 $$$$ 2>/dev/null; do :; done & done; \
	  often="go test -vet=off -timeout 4h -count=$(FLAKES) -p $$((4 * $$(nproc)))"; \
	  { seq $(FLAKES) | xargs -P $$((4 * $$(nproc))) -I{} go test -vet=off -count=1 -timeout 1h ./test/nri -args -rounds 3; } & nri=$$!; \
	  $$often $$(go list ./... | grep -vxFf <(go list $(ASKING))) & unit=$$!; \
	  $(MAIN_PARTS) $$often -skip HistoriesOfANode $(ASKING) & configure=$$!; \
	  failed=0; for part in $$nri $$unit $$configure; do wait $$part || failed=1; done; exit $$failed

handovers: ## run the same tests as make nri, but with many more rounds
	go test -vet=off -v -timeout 1h ./test/nri -args -rounds 50

fuzz: ## run each fuzz target for FUZZTIME
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "fuzz $$target"; go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s ./$$(dirname $$file); \
	  done; done

# The tables in test/e2e/parts_test.go and deploy/systemd/parts_node_test.go list, for each test, the part to which the test belongs and
# the node components that the test needs.
e2e: bin/rdma-node bin/e2e.test build $(if $(TEST),,release) ## run the tests on a real node; with TEST=TestName, run only that test, on a node with two CPUs
ifdef TEST
	@needs=$$(bin/e2e.test -needs '$(TEST)') && parts=$${needs% release} && \
	  { [ "$$parts" = "$$needs" ] || $(MAKE) --no-print-directory release; } && set -x && \
	  bin/rdma-node --timeout 1h --parts $$parts -- $(E2E) -test.run '^$(TEST)$$'
else
	bin/rdma-node --parts all --prepare
	go run ./test/suite $(subst :prepare,,$(subst :prepare-all,,$(filter node-%,$(PARTS) $(REST))))
endif

recorded-node: bin/rdma-node bin/e2e.test build ## record deploy/examples/node.tar.gz, a support bundle from a node where an RDMA container's memlock is too low
	bin/rdma-node --timeout 1h --parts main --share deploy/examples --env RDMA_RECORD=/run/host-share/node.tar.gz -- \
	  $(E2E) -test.run '^TestDoctorWithoutPlugin$$'

recorded-request: bin/rdma-node bin/e2e.test # record test/bench/testdata/kubelet-container.json: containerd's message about a kubelet's container
	bin/rdma-node --timeout 1h --cpus 2 --parts all --share test/bench/testdata \
	  --env RDMA_RECORD=/run/host-share/kubelet-container.json -- $(E2E) -test.run '^TestClusterRequest$$'

# Tests the code of the test node if that code has changed. In CI, the target always tests the code.
kit: bin/rdma-node ## test the code of the test node, if that code has changed
	go test $(if $(SUITE),-v) $(if $(CI),-count=1) $(NODETAGS) ./test/node/...

# This timeout is shorter than the node's own, so that a hanging test prints its stack traces.
INNODE     := -test.v -test.timeout 59m
E2E        := bin/e2e.test $(INNODE)
SERVICE    := ../../bin/service.test $(INNODE)
.PHONY: node-faults node-kubernetes node-dra node-policy node-restricted node-daemonset node-guides node-pair node-tool node-main node-edges node-runtimes node-versions node-crio node-emulated node-service node-upgrade node-package node-configure
node-faults: # test repeated crashes of the plugin and containerd
	$(NODE:1=2) -- $(E2E) -part faults
node-kubernetes: # test with a kubelet, and with an API server
	$(NODE:1=2) --parts all -- $(E2E) -part kubernetes
node-dra: # test with a DRA driver that is built from Kubernetes' own libraries
	$(NODE:1=2) --parts all -- $(E2E) -part dra
node-daemonset: # test the plugin as users install it in a cluster
	$(NODE:1=2) --parts all -- $(E2E) -part daemonset
node-policy: # test rollouts of policies, policies that the plugin refuses, and a plugin in the node's network
	$(NODE:1=2) --parts all -- $(E2E) -part policy
node-restricted: # test the chart's profile for namespaces that enforce the restricted Pod Security level
	$(NODE:1=2) --parts all -- $(E2E) -part restricted
node-guides: # test the guides in docs, as far as a software HCA allows, and kubectl rdma why with pods
	$(NODE:1=2) --parts all -- $(E2E) -part guides
node-pair: # test two nodes that are connected by a cable
	$(GOTEST) -count=1 $(NODETAGS) ./test/pair
node-tool: # test rdma-spec on a node and in a container
	$(NODE) -- $(E2E) -part tool
node-edges: # test edge cases and long waits on the main runtime
	$(NODE) --parts main -- $(E2E) -part edges
node-main: # run the main tests on the main runtime
	$(NODE) --parts main -- $(E2E) -part main
node-crio: # test with CRI-O
	$(NODE) -- $(E2E) -part crio
node-runtimes: # test with the oldest containerds, and with crun
	$(NODE) -- sh -ec '$(E2E) -part oldest -containerd 1.6; $(E2E) -part smoke -containerd 1.7.35 -runtime crun; $(E2E) -part dropins'
node-versions: # run a few tests with each of the other runtimes; older runtimes run first, because the state of newer runtimes remains
	$(NODE) -- sh -ec '$(E2E) -part crun -containerd 1.7.35 -runtime crun; \
	  for containerd in 1.7.35 2.2.9 2.3.7; do $(E2E) -part smoke -containerd $$containerd; done'
node-emulated: # run tests on Debian's own kernel; the other parts might run on User Mode Linux, without AppArmor and issm
	$(NODE) --machine tcg --parts all -- $(E2E) -part smoke,apparmor,shared
node-configure: # test rdma-spec configure, and containerd, under systemd
	$(NODE) -- $(E2E) -containerd= -part configure
node-service: # test the service under systemd
	$(NODE) --parts main -- env -C deploy/systemd sh -ec '$(SERVICE) -part restart; $(SERVICE) -part service'
node-upgrade: # test upgrades of the service with the other runtimes
	$(NODE) -- env -C deploy/systemd $(SERVICE) -part upgrade
node-package: rpm # test dpkg and rpm under systemd; the newer package differs only in its version
	@rm -rf bin/later
	bin/releaser packages --version v9.9.9 --date 1700000000 --output bin/later
	$(NODE) -- env -C deploy/systemd $(SERVICE) -part package

UPGRADES := 20
churn: bin/rdma-node bin/e2e.test build release ## upgrade the DaemonSet (20 times) and the service (20 times with each runtime) while pods start and stop
	bin/rdma-node --timeout 2h --cpus 2 --parts all -- $(E2E) -test.timeout 2h -part daemonset -test.run '/^Helm$$' -upgrades $(UPGRADES)
	bin/rdma-node --timeout 2h -- env -C deploy/systemd $(SERVICE) -test.timeout 2h -part churn -upgrades $(UPGRADES)

BUSY := 100
busy: bin/rdma-node bin/e2e.test build ## test the grants of containers that start on a node with a slow disk and a busy CPU
	$(NODE:1h=2h) -- $(E2E) -test.timeout 2h -part busy -busy $(BUSY)

# On an emulated CPU, each test spec takes 8 s and runs twice, so critest is too slow for make test-all.
FOCUS ?= .
critest: bin/rdma-node bin/e2e.test build ## run Kubernetes' runtime tests (critest), with and without the plugin; FOCUS=REGEXP selects tests
	bin/rdma-node --timeout 90m --parts critest -- $(E2E) -test.timeout 90m -part critest -critest-focus '$(FOCUS)'

.PHONY: bin/rdma-node bin/e2e.test
bin/rdma-node:
	@$(COMPILE) build -o bin/ ./test/node/cmd/rdma-node
bin/e2e.test:
	@$(COMPILE) test -c $(NODETAGS) -o bin/e2e.test ./test/e2e
	@$(COMPILE) test -c $(NODETAGS) -o bin/service.test ./deploy/systemd
	@$(COMPILE) build -o bin/ ./test/e2e/locker ./test/bench/peers
	@$(COMPILE) build -C deploy/release -o ../../bin/registry github.com/google/go-containerregistry/cmd/registry

# With BENCHFLAGS=-strict, the benchmark fails if it misses a performance target. -pairs and -batch set the number of measurements.
bench: ## measure the overhead of nri-rdma and other plugins on a node (needs root)
	go test -count=1 -v -timeout 30m ./test/bench -args -speed $(BENCHFLAGS)

PAIRS := 21
bench-pods: bin/rdma-node bin/e2e.test build ## measure how many pods start per second on a node, with and without the plugin
	bin/rdma-node --timeout 1h --parts main -- $(E2E) -test.timeout 1h -part pods -pod-pairs $(PAIRS)

lint: $(LINTER) ## run golangci-lint, which includes go vet
	$(MEMORY) $(LINTER) run ./...
	cd deploy/release && $(MEMORY) $(LINTER) run ./...
	cd test/nri/runtime && $(MEMORY) $(LINTER) run ./...

$(LINTER):
	mkdir -p $(@D)
	GOBIN=$(@D)/tmp $(COMPILE) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(@D)/tmp/golangci-lint $@

clean: ## remove build results, but keep the cache in ~/.cache/rdma-spec
	rm -rf bin
