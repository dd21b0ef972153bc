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

// recipeBook holds a recipe for each part of the node.
type recipeBook struct {
	cache  string // the directory that clones share
	source string // this package's directory in the clone
	host   string // the host's os-release, which decides what programs in C are linked with
	debian archive
}

// recipes finds the cache and this package's sources.
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

// sourceDir is this package's directory in the clone: the Go parts are modules
// in its directory parts, and go:embed cannot reach into other modules. The clone
// is looked for around the program, then around the working directory: go test
// builds its program elsewhere, and runs it in the package's directory.
func sourceDir() (string, error) {
	program, _ := os.Executable() // "" finds nothing
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

// main is what the node needs to boot and to run containers, cheapest first.
func (r recipeBook) main() []part {
	kernel := r.kernel()
	agent := r.agent()
	return []part{
		kernel, agent, r.initramfs(kernel, agent), r.disk(), r.images(), r.runc(),
		r.containerd("2.4.2", "github.com/containerd/containerd/v2"),
	}
}

// core adds the other runtimes.
func (r recipeBook) core() []part {
	return append(r.main(),
		r.debianContainerd(), r.cni(), r.podman(), r.podman13(),
		r.containerd("1.7.35", "github.com/containerd/containerd"),
		r.containerd("2.2.9", "github.com/containerd/containerd/v2"),
		r.containerd("2.3.7", "github.com/containerd/containerd/v2"),
		r.crio(), r.docker(), r.nvidiaCTK(),
	)
}

// kubernetes is what makes the node one of a cluster.
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

// tests are Kubernetes' tests of a runtime, with what they run on.
func (r recipeBook) tests() []part { return append(r.main(), r.critest()) }

// all is what the tests of this repository run on.
func (r recipeBook) all() []part { return append(r.core(), r.kubernetes()...) }

// containerd is a release of containerd: the daemon, the shim and ctr.
func (r recipeBook) containerd(version, module string) part {
	return r.goPart(goModule{
		name: "containerd-" + version, cost: "80 s on two cores", tags: "no_btrfs",
		stamps: []string{module + "/version.Version=v" + version},
	})
}

// crio is CRI-O, and pinns, a C program in the same module that holds a pod's
// namespaces for it.
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

// docker is Docker's daemon.
func (r recipeBook) docker() part {
	return r.goPart(goModule{name: "docker", cost: "4 minutes on two cores", tags: "nri_no_wasm"})
}

// nvidiaCTK is NVIDIA's container runtime, its hook, the tool that adds their handlers to containerd's configuration,
// and the installer, which is an NRI plugin. They load NVIDIA's libraries by C.
func (r recipeBook) nvidiaCTK() part {
	return r.goPart(goModule{name: "nvidia-ctk", cost: "20 s on two cores", needsC: true})
}

// cni holds the CNI plugins that the node's networks and its tests use.
func (r recipeBook) cni() part { return r.goPart(goModule{name: "cni", cost: "10 s on two cores"}) }

// critest is Kubernetes' tests of runtimes.
func (r recipeBook) critest() part {
	return r.goPart(goModule{name: "critest-1.36.0", cost: "100 s on two cores",
		testOf: "sigs.k8s.io/cri-tools/cmd/critest"})
}

// runc needs C for the moment between clone and exec, and libseccomp: without
// the tag a kubelet's pods fail.
func (r recipeBook) runc() part {
	return r.goPart(goModule{name: "runc", cost: "20 s on two cores", tags: "seccomp", needsC: true})
}

// embedded returns the contents of files that are part of this program.
func embedded(names ...string) []string {
	var contents []string
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			panic(err) // go:embed has put it there
		}
		contents = append(contents, string(content))
	}
	return contents
}
