// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// recipeBook contains a recipe for each part of the node.
type recipeBook struct {
	cache  string // the directory that clones share
	source string // this package's directory in the clone
	host   string // the host's os-release, which decides the libraries that C programs are linked with
	debian archive
}

// recipes finds the cache directory and this package's sources.
func recipes() (recipeBook, error) {
	cache, err := cacheDir()
	if err != nil {
		return recipeBook{}, err
	}
	source, err := sourceDir()
	if err != nil {
		return recipeBook{}, err
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return recipeBook{}, err
	}
	return recipeBook{cache: cache, source: source, host: string(release), debian: debian12(string(release), cache)}, nil
}

// sourceDir returns this package's directory in the clone. It is needed because the Go parts are separate modules in
// the directory parts, which go:embed cannot read. sourceDir looks for the clone above the program, and then above the
// working directory, because go test builds its program elsewhere, and runs it in the package's directory.
func sourceDir() (string, error) {
	program, _ := os.Executable() // if this fails, the path is "", and nothing is found there
	working, _ := os.Getwd()
	for _, start := range []string{program, working} {
		for dir := start; len(dir) > 1; dir = filepath.Dir(dir) {
			if found := filepath.Join(dir, "test", "node"); exists(filepath.Join(found, "parts")) {
				return found, nil
			}
		}
	}
	return "", errors.New("no directory test/node/parts around the program or the working directory: run this in a clone of " +
		"the project")
}

// main returns the parts that the node needs to boot and to run containers. The fastest build is first.
func (r recipeBook) main() []part {
	kernel := r.kernel()
	agent := r.agent()
	return []part{
		kernel, agent, r.initramfs(kernel, agent), r.disk(), r.images(), r.runc(),
		r.containerd("2.4.2", "github.com/containerd/containerd/v2"),
	}
}

// core returns main and the parts of the other runtimes.
func (r recipeBook) core() []part {
	return append(r.main(),
		r.debianContainerd(), r.cni(), r.podman(), r.podman13(),
		r.containerd("1.7.35", "github.com/containerd/containerd"),
		r.containerd("2.2.9", "github.com/containerd/containerd/v2"),
		r.containerd("2.3.7", "github.com/containerd/containerd/v2"),
		r.crio(), r.docker(), r.nvidiaCTK(),
	)
}

// kubernetes returns the parts that a cluster's node needs.
func (r recipeBook) kubernetes() []part {
	const name, version = "kubernetes", "k8s.io/component-base/version."
	is := r.version(name, "k8s.io/kubernetes")
	numbers := append(strings.Split(strings.TrimPrefix(is, "v"), "."), "", "")
	return []part{
		r.goPart(goModule{name: name, cost: "6 minutes on two cores", stamps: []string{
			version + "gitVersion=" + is, version + "gitMajor=" + numbers[0], version + "gitMinor=" + numbers[1],
		}}),
		r.goPart(goModule{name: "dra-driver", cost: "40 s on two cores"}),
		r.goPart(goModule{name: "helm", cost: "2 minutes on two cores"}),
		r.programs("etcd", "etcd-server", "usr/bin"),
		r.goPart(goModule{name: "k8s-rdma-shared-dev-plugin", cost: "15 s on two cores"}),
		r.definitions(),
	}
}

// tests returns main and Kubernetes' tests for container runtimes.
func (r recipeBook) tests() []part { return append(r.main(), r.critest()) }

// all returns the parts that this repository's tests need.
func (r recipeBook) all() []part { return append(r.core(), r.kubernetes()...) }

// containerd returns the part that contains a release of containerd: the daemon, the shim, and ctr.
func (r recipeBook) containerd(version, module string) part {
	return r.goPart(goModule{
		name: "containerd-" + version, cost: "80 s on two cores", tags: "no_btrfs",
		stamps: []string{module + "/version.Version=v" + version},
	})
}

// crio returns the part that contains CRI-O and pinns. pinns is a C program in the same module, which creates a pod's
// namespaces for CRI-O.
func (r recipeBook) crio() part {
	const module = "github.com/cri-o/cri-o"
	p := r.goPart(goModule{
		name: "crio-1.34.0", cost: "3 minutes on two cores", needsC: true,
		tags: "containers_image_openpgp,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper,libdm_no_deferred_remove,seccomp",
	})
	tools := p.build
	source := filepath.Join(r.source, "parts", p.name)
	p.recipe = append(p.recipe, "pinns")
	p.build = func(ctx context.Context, dir string) error {
		if err := tools(ctx, dir); err != nil {
			return err
		}
		unpacked, err := output(ctx, source, nil, "go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
		if err != nil {
			return err
		}
		pinns, err := filepath.Glob(filepath.Join(strings.TrimSpace(unpacked), "pinns", "src", "*.c"))
		if err != nil {
			return err
		}
		return run(ctx, dir, nil, "gcc", append([]string{"-std=c99", "-static", "-Os", "-s", "-o", "pinns"}, pinns...)...)
	}
	return p
}

// docker returns the part that contains Docker's daemon.
func (r recipeBook) docker() part {
	return r.goPart(goModule{name: "docker", cost: "4 minutes on two cores", tags: "nri_no_wasm"})
}

// nvidiaCTK returns the part that contains NVIDIA's container runtime, its hook, the tool that adds its handlers to
// containerd's configuration, and the installer, which is an NRI plugin. They load NVIDIA's libraries through C.
func (r recipeBook) nvidiaCTK() part {
	return r.goPart(goModule{name: "nvidia-ctk", cost: "20 s on two cores", needsC: true})
}

// cni returns the part that contains the CNI plugins for the node's networks and their tests.
func (r recipeBook) cni() part { return r.goPart(goModule{name: "cni", cost: "10 s on two cores"}) }

// critest returns the part that contains Kubernetes' tests for container runtimes.
func (r recipeBook) critest() part {
	return r.goPart(goModule{name: "critest-1.36.0", cost: "100 s on two cores",
		testOf: "sigs.k8s.io/cri-tools/cmd/critest"})
}

// runc returns the part that contains runc. runc needs C code between clone and exec, and libseccomp: without the build
// tag seccomp, a kubelet's pods fail.
func (r recipeBook) runc() part {
	return r.goPart(goModule{name: "runc", cost: "20 s on two cores", tags: "seccomp", needsC: true})
}

// embedded returns the contents of files that are embedded in this program.
func embedded(names ...string) []string {
	var contents []string
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			panic(err) // cannot fail, because go:embed has embedded the file
		}
		contents = append(contents, string(content))
	}
	return contents
}
