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

# What runs in the node. Two nodes with a CPU each take two thirds of the time on two cores that they take one after the other with two
# CPUs. A cluster wants both, and so does a containerd that clients press on while it comes up.
NODE     := bin/rdma-node --timeout 30m --cpus 1

export CGO_ENABLED = 0

# Of every build, whatever the environment says: programs and tests then share what they are compiled from. grpcnotrace keeps gRPC's debug
# pages, and with them html/template, out of the binaries: 4 MB less. Without debugging information a build takes a tenth less time.
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false -tags=grpcnotrace
# The same with the tests that need a node.
NODETAGS := -tags=grpcnotrace,node

# A compiler that collects no garbage below 2 GiB takes a fifth less time, and the linter a third.
MEMORY   := GOGC=off GOMEMLIMIT=2GiB
COMPILE  := $(MEMORY) go

.PHONY: help build amd64 arm64 kubectl image notes push sbom packages release demo demo-picture node check update vulnerabilities test test-rest test-all nightly prepare prepare-all parts deps unit release-test configure configure-older histories archives rpm race mutations mutations-random nri flakes handovers fuzz e2e kit churn busy critest bench bench-pods lint clean site site-deps site-why site-test site-archive

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The programs run on nodes, so on Linux, wherever they are built.
PROGRAMS := $(addprefix ./cmd/,nri-rdma rdma-spec rdma-hook)
build: ## static binaries of nri-rdma, rdma-spec and rdma-hook in bin/, for a node of this machine's architecture
	GOOS=linux GOARCH=$$(go env GOHOSTARCH) $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS)

amd64: ## the same for amd64, in bin/amd64/
arm64: ## the same for arm64, in bin/arm64/
amd64 arm64:
	GOOS=linux GOARCH=$@ $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/$@/ $(PROGRAMS)

# A client of the API server takes a minute to compile for each system, so the tests have it for one alone.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
kubectl: ## kubectl rdma for each of PLATFORMS, in bin/kubectl/
	@rm -rf bin/kubectl
	@for platform in $(PLATFORMS); do export GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
	  $(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/kubectl/$${GOOS}_$$GOARCH/ ./cmd/kubectl-rdma || exit; done

# Every module that the linker has put into a program, as CycloneDX. It is known from the program alone.
sbom: $(SBOM) amd64 arm64 kubectl ## the bill of materials of each program, in bin/sbom/
	@rm -rf bin/sbom && mkdir -p bin/sbom
	@for file in bin/amd64/* bin/arm64/* bin/kubectl/*/*; do system=$$(basename $$(dirname $$file)); name=$$(basename $$file .exe); \
	  case $$system in *_*) ;; *) system=linux_$$system ;; esac; \
	  $(SBOM) bin -json -std -noserial -notimestamp -version $(VERSION) -output bin/sbom/$${name}_$$system.cdx.json $$file || exit; done

$(SBOM):
	mkdir -p $(@D)
	GOBIN=$(@D)/tmp $(COMPILE) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
	mv $(@D)/tmp/cyclonedx-gomod $@

# Every file of an image or a release has the time of the commit. KEY is the file of the OpenPGP key that signs deb and rpm.
RELEASE = $(COMPILE) build -C deploy/release -o ../../bin/releaser . && bin/releaser $(1) --version $(VERSION) --date $${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(if $(KEY),--key $(KEY))
image: amd64 arm64 ## the container image for both architectures: bin/image, an OCI layout, and bin/image.tar
	$(call RELEASE,image)

packages: amd64 arm64 ## a deb and an rpm for each architecture, in bin/packages
	@rm -rf bin/packages
	$(call RELEASE,packages)

release: amd64 arm64 kubectl sbom ## all that a release has, in bin/release: image, archives, packages, chart, bills of materials, checksums
	$(call RELEASE,all)

# VitePress renders docs, in the version of the lock file. SITE_BASE is the path that the site is served at, and SITE_VERSION what it is
# about: a tag, or main.
SITE      := docs/.vitepress
SITE_BASE ?= /
site: site-deps site-why $(SITE)/node_modules/.package-lock.json ## the documentation as a site for any web server, in bin/site
	cd $(SITE) && npx vitepress build .. --base $(SITE_BASE)

# Package why for the site's box, and what loads a program of this Go. Not every server compresses what it sends.
site-why:
	@mkdir -p bin/why
	GOOS=js GOARCH=wasm $(COMPILE) build -ldflags '-s -w' -o bin/why/why.wasm ./cmd/internal/why/browser
	gzip -9nf bin/why/why.wasm
	cp "$$(go env GOROOT)/lib/wasm/wasm_exec.js" bin/why/

$(SITE)/node_modules/.package-lock.json: $(SITE)/package-lock.json
	cd $(SITE) && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier

DOCS = rdma-spec_$(VERSION:v%=%)_docs.tar.gz
site-archive: site # the site beside what make release has written
	tar -C bin --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
	  --transform='s,^site,$(DOCS:.tar.gz=),' -c site | gzip -9n >bin/release/$(DOCS)
	cd bin/release && sha256sum $(DOCS) >>SHA256SUMS

notes: ## what CHANGELOG.md says of VERSION: the section with exactly this heading
	@awk -v heading='## $(VERSION)' '/^## /{on = $$0 == heading; next} on && /./{found = 1} on; END{exit !found}' CHANGELOG.md || \
	  { echo 'CHANGELOG.md has no section "## $(VERSION)", or nothing in it' >&2; exit 1; }

push: image ## that image to a registry: IMAGE=registry.example.com/rdma-spec:v1
	bin/releaser push bin/image $(IMAGE)

demo: bin/rdma-node build ## the main job, told on a real RDMA node that boots on this machine
	@$(COMPILE) build -o bin/ ./test/demo
	@bin/rdma-node --parts main $(if $(MAKE_TERMOUT),--env DEMO_COLOR=1) --timeout 15m -- bin/demo

# The README's picture, from a real run; it needs Node.js.
demo-picture:
	MAKE_TERMOUT=1 $(MAKE) --no-print-directory -s demo | tee bin/demo.txt
	node test/demo/cast.mjs < bin/demo.txt > bin/demo.cast
	npx --yes svg-term-cli@2.1.1 --in bin/demo.cast --out docs/demo.svg --at 200 --no-cursor --padding 15

node: bin/rdma-node build ## an interactive shell on that node
	@bin/rdma-node --shell

check: deps $(LINTER) ## what to run after each change: linters and unit tests, with the seeds of the fuzz targets; what was skipped
	@go run ./test/suite $(VERBOSE) unit=1 configure=1 lint=1

BASE ?= HEAD
update: ## write the golden files of a change anew: of what differs from HEAD, or from BASE=COMMIT
	@go run ./test/update -base $(BASE)
	@git status --short

# V=1 prints which tests were skipped, and why.
VERBOSE := $(if $(V),-v)

# Each part with its places, of which a core has two, and the part that it waits for, the longest first, so that no core is idle at the
# end. What needs no node runs while the node's kernel compiles. A UML node has one CPU. That of the cluster has more than a core: in a
# node that gets a third of one, an API server leaves other programs standing still for many seconds.
PARTS := prepare=2 race=1 unit=1 node-main=1:prepare nri=1 node-service=1:prepare configure=1:prepare lint=1 mutations=1
REST  := prepare-all=3 $(patsubst %,%:prepare-all,node-daemonset=3 node-restricted=3 site-test=1 node-kubernetes=2 node-configure=1 node-tool=1 configure-older=1 \
  node-faults=2 node-package=1 node-crio=1 node-edges=1 node-upgrade=1 node-pair=2 node-runtimes=1 release-test=1 kit=1)
SUITE_OF = FRESH=yes go run ./test/suite $(VERBOSE) $(if $(filter uml,$(shell bin/rdma-node --parts test --which)),$(subst =2:,=1:,$(1)),$(1))

test: deps ## the main job on a real node, and every unit's logic, with a table of the tests at the end (needs root for the node)
	FRESH=yes RACED='$(RACE)' go run ./test/suite $(VERBOSE) $(PARTS)

test-rest: deps bin/rdma-node # what make test-all has beyond make test
	@$(call SUITE_OF,$(REST))

test-all: ## make test, then everything else: clusters, CRI-O, Podman and Docker, older containerds, the site, a release
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

nightly flakes handovers: export RDMA_TEST_SEED ?= random
nightly: deps bin/rdma-node ## what takes too long for make test-all: more packages, kernels and runtimes, more often
	@RACE=./... HISTORIES=200 $(call SUITE_OF,prepare-all=3 $(patsubst %,%:prepare-all,race=1 node-policy=3 node-guides=2 node-emulated=1 node-versions=1 \
	  node-dra=1 mutations-random=1 histories=1 archives=1))
	$(MAKE) --no-print-directory flakes handovers busy churn

# What make test needs: the programs, and the node's main parts with its kernel. The kernel, in C, compiles beside what is written in Go.
prepare:
	@$(MAKE) --no-print-directory -j2 parts build bin/e2e.test

parts: bin/rdma-node
	bin/rdma-node --parts test --prepare

# What the rest needs: all parts of the node, a release, and the browser.
prepare-all: bin/rdma-node
	@$(MAKE) --no-print-directory site-deps SITE_NEEDS='npm chromium'
	@$(MAKE) --no-print-directory -j2 bin/e2e.test build release PLATFORMS=linux/amd64
	bin/rdma-node --parts all --prepare

vulnerabilities: ## known ones in what the programs call, by govulncheck, which asks vuln.go.dev
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...
	cd deploy/release && go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

# What the tests need of Debian's packages beside what the node installs for itself: a C compiler for the race detector, systemd-analyze,
# strace to kill a run at each system call, udev, an emulator for the programs of arm64, and Prometheus and promtool without what they recommend.
PROMETHEUS := $(CACHE)/bin/prometheus
deps: $(PROMETHEUS)
	@[ "$$(command -v gcc strace systemd-analyze qemu-aarch64 udevadm | wc -l)" = 5 ] || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev strace systemd qemu-user udev; }

$(PROMETHEUS):
	@mkdir -p $(@D)/tmp && cd $(@D)/tmp && rm -f prometheus_*.deb && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }
	@cd $(@D)/tmp && dpkg-deb --fsys-tarfile prometheus_*.deb | tar x --strip-components 3 ./usr/bin/promtool ./usr/bin/prometheus && \
	  mv promtool prometheus .. && rm prometheus_*.deb

# Node.js for the site, and a browser for its tests: each package has the name of its command.
SITE_NEEDS := npm
site-test: SITE_NEEDS += chromium
site-deps:
	@missing=; for package in $(SITE_NEEDS); do command -v $$package >/dev/null || missing="$$missing $$package"; done; \
	  [ -z "$$missing" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; }

# The suite counts tests, and make test runs all of them: FRESH. Otherwise what has passed with the same sources is not run again. The
# linter vets.
GOTEST := go test -vet=off $(if $(SUITE),-v) $(if $(FRESH),-count=1)

# These packages ask containerds that are built for the node, where there are any. The rest of the unit tests need not wait for them.
ASKING := ./cmd/rdma-spec/internal/configure/... ./cmd/rdma-spec/internal/node/runtime
# With MAIN_PARTS they leave out what needs more than the main containerd: older ones, upgrades from them, CRI-O, or NVIDIA's toolkit.
MAIN_PARTS := RDMA_TEST_PARTS=main

# In make test, the packages that run under the race detector do not run without it as well; but for their tests that ask whether it is on,
# and leave something out.
ASK_RACE = $$(grep -rl 'race\.[A-Z]' --include='*_test.go' $(RACED:/...=))
unit: deps ## tests that need no node
	$(GOTEST) $$(go list ./... | grep -vxFf <(go list $(ASKING) $(RACED)))
	@[ -z '$(RACED)' ] || { \
	  tests=$$(awk -F '[ (]' '/^func Test/ {name = $$2} /race\.[A-Z]/ {print name}' $(ASK_RACE) | paste -sd '|'); \
	  $(GOTEST) -run "^($$tests)$$" $$(dirname $(ASK_RACE) | sort -u); }

configure: deps ## tests of what configure makes of a containerd's files, as the node's main containerd reads them
	$(MAIN_PARTS) $(GOTEST) -skip HistoriesOfANode $(ASKING)

configure-older: # the same with older containerds as well, and beside NVIDIA's toolkit
	$(GOTEST) -skip HistoriesOfANode $(ASKING)
	@$(MAKE) --no-print-directory histories

HISTORIES ?= 12
histories: # what people, upgrades, and other tools do to a node, one after another by chance; RDMA_TEST_SEED=random walks others
	$(GOTEST) -timeout 2h -run HistoriesOfANode ./cmd/rdma-spec/internal/configure -histories $(HISTORIES)

archives: # the doctor's verdicts on archives of all nodes that its tests plant
	$(GOTEST) -timeout 1h -run Archive ./cmd/rdma-spec/internal/doctor/planted -archives 1000

# A module of its own, for its dependencies. go test does not see when files outside of it change.
release-test: deps rpm # the chart, the image, packages, and all else that a release has
	cd deploy/release && $(GOTEST) -count=1 ./...

rpm: # what builds and reads packages, and makes repositories of them
	@[ "$$(command -v rpm dnf createrepo_c dpkg-scanpackages | wc -l)" = 4 ] || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends rpm dnf createrepo-c dpkg-dev; }

# What runs for long, or does several things at once. All packages are run nightly.
RACE ?= ./spec/hca ./plugin $(addprefix ./plugin/,breaker inventory limits localrpc podresources policy/inforce registration/... \
  storedspec) $(addprefix ./cmd/,nri-rdma rdma-hook internal/cli $(addprefix rdma-spec/internal/,collect doctor node/...))
race: deps ## tests of what does several things at once, under the race detector
	CGO_ENABLED=1 $(GOTEST) -race $(RACE)

mutations: ## each guard of the policy is taken away, and a row of the attack table must fail
	$(GOTEST) -tags mutation -run TestMutations ./plugin/policy

# What survives is in test/mutants/survivors.tsv, and fails where it is not.
MUTATED := ./plugin/policy ./plugin/storedspec ./plugin/registration ./spec/hca \
  $(addprefix ./cmd/rdma-spec/internal/configure/,change editor)
mutations-random: deps ## 40 random changes of each package of MUTATED, which its tests must notice; SEED chooses
	go run ./test/mutants $(if $(SEED),-seed $(SEED)) $(MUTATED)

site-test: site ## the site in a browser; screenshots are in bin/log/site
	cd $(SITE) && node --test-reporter=./reporter.mjs site.test.mjs

nri: ## ends and upgrades of the plugin under load, beside each version of NRI that containerd has
	$(GOTEST) -timeout 20m ./test/nri -args -rounds 3

# Twice as many busy loops as the host has cores, each of which ends with the shell. Twice as many tests run at once, since the
# loops get their share of the time; nri mostly waits.
FLAKES := 20
flakes: deps ## unit, configure and nri, 20 times beside two busy loops per core: what fails by chance
	@for loop in $$(seq $$((2 * $$(nproc)))); do while kill -0 $$$$ 2>/dev/null; do :; done & done; \
	  often="go test -vet=off -timeout 4h -count=$(FLAKES) -p $$((4 * $$(nproc)))"; \
	  { seq $(FLAKES) | xargs -P $$((4 * $$(nproc))) -I{} go test -vet=off -count=1 -timeout 1h ./test/nri -args -rounds 3; } & nri=$$!; \
	  $$often $$(go list ./... | grep -vxFf <(go list $(ASKING))) & unit=$$!; \
	  $(MAIN_PARTS) $$often -skip HistoriesOfANode $(ASKING) & configure=$$!; \
	  failed=0; for part in $$nri $$unit $$configure; do wait $$part || failed=1; done; exit $$failed

handovers: ## nri, ten times as often
	go test -vet=off -v -timeout 1h ./test/nri -args -rounds 50

fuzz: ## every fuzz target, $(FUZZTIME) each
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
	    echo "fuzz $$target"; go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1s ./$$(dirname $$file); \
	  done; done

# Tables beside the tests say which test is in which part, and what it needs: parts_test.go in test/e2e, parts_node_test.go in deploy/systemd.
e2e: bin/rdma-node bin/e2e.test build $(if $(TEST),,release) ## tests on the real node; with TEST=TestName this one alone, on two CPUs
ifdef TEST
	@needs=$$(bin/e2e.test -needs '$(TEST)') && parts=$${needs% release} && \
	  { [ "$$parts" = "$$needs" ] || $(MAKE) --no-print-directory release; } && set -x && \
	  bin/rdma-node --timeout 30m --parts $$parts -- $(E2E) -test.run '^$(TEST)$$'
else
	bin/rdma-node --parts all --prepare
	go run ./test/suite $(subst :prepare,,$(subst :prepare-all,,$(filter node-%,$(PARTS) $(REST))))
endif

recorded-node: bin/rdma-node bin/e2e.test build ## deploy/examples/node.tar.gz: a node whose RDMA container lacks memlock, as collect sees it
	bin/rdma-node --timeout 30m --parts main --share deploy/examples --env RDMA_RECORD=/run/host-share/node.tar.gz -- \
	  $(E2E) -test.run '^TestDoctorWithoutPlugin$$'

recorded-request: bin/rdma-node bin/e2e.test # test/bench/testdata/kubelet-container.json: what containerd sends of a kubelet's container
	bin/rdma-node --timeout 30m --cpus 2 --parts all --share test/bench/testdata \
	  --env RDMA_RECORD=/run/host-share/kubelet-container.json -- $(E2E) -test.run '^TestClusterRequest$$'

# The node itself is tested anew where its sources have changed, and in CI.
kit: bin/rdma-node ## tests of the node itself
	go test $(if $(SUITE),-v) $(if $(CI),-count=1) $(NODETAGS) ./test/node/...

# A test that hangs says where before the node's own time is used up.
INNODE     := -test.v -test.timeout 29m
E2E        := bin/e2e.test $(INNODE)
SERVICE    := ../../bin/service.test $(INNODE)
.PHONY: node-faults node-kubernetes node-dra node-policy node-restricted node-daemonset node-guides node-pair node-tool node-main node-edges node-runtimes node-versions node-crio node-emulated node-service node-upgrade node-package node-configure
node-faults: # the plugin and containerd die, again and again
	$(NODE:1=2) -- $(E2E) -part faults
node-kubernetes: # with a kubelet, and with an API server
	$(NODE:1=2) --parts all -- $(E2E) -part kubernetes
node-dra: # a DRA driver of Kubernetes' own parts
	$(NODE:1=2) --parts all -- $(E2E) -part dra
node-daemonset: # the plugin as people install it in a cluster
	$(NODE:1=2) --parts all -- $(E2E) -part daemonset
node-policy: # policies that roll out, and that the plugin refuses; a plugin in the node's network
	$(NODE:1=2) --parts all -- $(E2E) -part policy
node-restricted: # the chart's profile for namespaces that enforce Pod Security's level restricted
	$(NODE:1=2) --parts all -- $(E2E) -part restricted
node-guides: # the guides of docs, as far as a software HCA goes, and what kubectl rdma why says of pods
	$(NODE:1=2) --parts all -- $(E2E) -part guides
node-pair: # two nodes that are joined by a cable
	$(GOTEST) -count=1 $(NODETAGS) ./test/pair
node-tool: # rdma-spec on a node and in a container
	$(NODE) -- $(E2E) -part tool
node-edges: # rare circumstances, and long waits, on the main runtime
	$(NODE) --parts main -- $(E2E) -part edges
node-main: # the main job, on the main runtime
	$(NODE) --parts main -- $(E2E) -part main
node-crio: # CRI-O
	$(NODE) -- $(E2E) -part crio
node-runtimes: # the oldest containerds, and crun
	$(NODE) -- sh -ec '$(E2E) -part oldest -containerd 1.6; $(E2E) -part smoke -containerd 1.7.35 -runtime crun; $(E2E) -part dropins'
node-versions: # what is enough to know that another runtime does its part; the older first, since a newer one's state stays
	$(NODE) -- sh -ec '$(E2E) -part crun -containerd 1.7.35 -runtime crun; \
	  for containerd in 1.7.35 2.2.9 2.3.7; do $(E2E) -part smoke -containerd $$containerd; done'
node-emulated: # the same on Debian's own kernel, where the other parts run on one that is a program, which has no AppArmor and no issm
	$(NODE) --machine tcg --parts all -- $(E2E) -part smoke,apparmor,shared
node-configure: # rdma-spec configure, and containerd, under systemd
	$(NODE) -- $(E2E) -containerd= -part configure
node-service: # under systemd
	$(NODE) --parts main -- env -C deploy/systemd sh -ec '$(SERVICE) -part restart; $(SERVICE) -part service'
node-upgrade: # upgrades of the service beside the other runtimes
	$(NODE) -- env -C deploy/systemd $(SERVICE) -part upgrade
node-package: rpm # dpkg and rpm, under systemd; the later package is the same one with another version
	@rm -rf bin/later
	bin/releaser packages --version v9.9.9 --date 1700000000 --output bin/later
	$(NODE) -- env -C deploy/systemd $(SERVICE) -part package

UPGRADES := 20
churn: bin/rdma-node bin/e2e.test build release ## 20 upgrades of the DaemonSet, and of the service beside each runtime, while pods start and end
	bin/rdma-node --timeout 2h --cpus 2 --parts all -- $(E2E) -test.timeout 2h -part daemonset -test.run '/^Helm$$' -upgrades $(UPGRADES)
	bin/rdma-node --timeout 2h -- env -C deploy/systemd $(SERVICE) -test.timeout 2h -part churn -upgrades $(UPGRADES)

BUSY := 100
busy: bin/rdma-node bin/e2e.test build ## a node with a slow disk and a loaded CPU: what containers have when they start
	$(NODE:30m=2h) -- $(E2E) -test.timeout 2h -part busy -busy $(BUSY)

# A spec takes 8 s on an emulated CPU and is run twice: too much for make test-all.
FOCUS ?= .
critest: bin/rdma-node bin/e2e.test build ## Kubernetes' own tests of a runtime, without the plugin and with it; FOCUS=REGEXP chooses
	bin/rdma-node --timeout 90m --parts critest -- $(E2E) -test.timeout 90m -part critest -critest-focus '$(FOCUS)'

.PHONY: bin/rdma-node bin/e2e.test
bin/rdma-node:
	@$(COMPILE) build -o bin/ ./test/node/cmd/rdma-node
bin/e2e.test:
	@$(COMPILE) test -c $(NODETAGS) -o bin/e2e.test ./test/e2e
	@$(COMPILE) test -c $(NODETAGS) -o bin/service.test ./deploy/systemd
	@$(COMPILE) build -o bin/ ./test/e2e/locker ./test/bench/peers
	@$(COMPILE) build -C deploy/release -o ../../bin/registry github.com/google/go-containerregistry/cmd/registry

# BENCHFLAGS=-strict fails where a target is missed; -pairs and -batch say how much is measured.
bench: ## what nri-rdma costs a node, beside other plugins (needs root)
	go test -count=1 -v -timeout 30m ./test/bench -args -speed $(BENCHFLAGS)

PAIRS := 21
bench-pods: bin/rdma-node bin/e2e.test build ## how many pods start in a second, with the plugin and without it, on the node
	bin/rdma-node --timeout 1h --parts main -- $(E2E) -test.timeout 1h -part pods -pod-pairs $(PAIRS)

lint: $(LINTER) ## golangci-lint, with go vet in it
	$(MEMORY) $(LINTER) run ./...
	cd deploy/release && $(MEMORY) $(LINTER) run ./...
	cd test/nri/runtime && $(MEMORY) $(LINTER) run ./...

$(LINTER):
	mkdir -p $(@D)
	GOBIN=$(@D)/tmp $(COMPILE) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(@D)/tmp/golangci-lint $@

clean: ## remove what was built here; the cache in ~/.cache/rdma-spec stays
	rm -rf bin
