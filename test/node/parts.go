// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// partsVariable is the environment variable that contains the parts' directory, for commands in the guest.
const partsVariable = "RDMA_NODE_PARTS"

// files are the parts' recipes that are not Go modules.
//
//go:embed guest image
var files embed.FS

// PartSet is a directory of links to all parts of the node. The links' names do not change, such as containerd-2.4.2,
// runc, or images. The directory has the same path on the host and in the guest.
type PartSet struct{ dir string }

// Parts returns the parts of the node on which this program runs. On the host, it returns the parts of this clone's
// node, which exist after Prepare has built them.
func Parts() (PartSet, error) {
	if dir := os.Getenv(partsVariable); dir != "" {
		return PartSet{dir}, nil
	}
	all, err := recipes()
	if err != nil {
		return PartSet{}, err
	}
	return PartSet{all.links().dir(all.cache)}, nil
}

// Dir returns the directory itself, for parts that have no method.
func (s PartSet) Dir() string { return s.dir }

// Containerd returns the directory with containerd, containerd-shim-runc-v2 and
// ctr of a version: "1.6" (Debian's), "1.7.35", "2.2.9", "2.3.7" or "2.4.2".
func (s PartSet) Containerd(version string) string {
	return filepath.Join(s.dir, "containerd-"+version)
}

// CRIO returns the directory with crio and pinns, of CRI-O 1.34.0.
func (s PartSet) CRIO() string { return filepath.Join(s.dir, "crio-1.34.0") }

// Podman returns the path of Podman's program, and the environment variable that tells it where its libraries are.
func (s PartSet) Podman() (program, variable string) {
	dir := filepath.Join(s.dir, "podman", "usr")
	return filepath.Join(dir, "bin", "podman"), "LD_LIBRARY_PATH=" + filepath.Join(dir, "lib", "x86_64-linux-gnu")
}

// Podman13 returns a root directory that contains Podman 5.4 from Debian 13.
func (s PartSet) Podman13() string { return filepath.Join(s.dir, "podman-13") }

// Docker returns the program dockerd, of moby v2.0.0-beta.24.
func (s PartSet) Docker() string { return filepath.Join(s.dir, "docker", "dockerd") }

// Critest returns the program critest, of cri-tools 1.36.0.
func (s PartSet) Critest() string { return filepath.Join(s.dir, "critest-1.36.0", "critest.test") }

// Runtime returns the executable of an OCI runtime: "runc" or "crun".
func (s PartSet) Runtime(name string) string {
	if name == "crun" {
		return "/usr/bin/crun" // Debian's, installed on the host
	}
	return filepath.Join(s.dir, name, name)
}

// Image returns the docker-archive of an image: "pause" or "busybox". After an import, its reference is
// ImageName(name).
func (s PartSet) Image(name string) string {
	return filepath.Join(s.dir, "images", name+".tar")
}

// ImageName returns the reference of an image after it was imported.
func ImageName(name string) string { return "rdma-node.test/" + name + ":1" }

// CNI returns the directory with the CNI plugins: bridge, host-local, loopback, macvlan, and static.
func (s PartSet) CNI() string { return filepath.Join(s.dir, "cni") }

// Kubernetes returns the directory with kubelet, kube-apiserver,
// kube-controller-manager, kube-scheduler and kubectl.
func (s PartSet) Kubernetes() string { return filepath.Join(s.dir, "kubernetes") }

// SharedDevicePlugin returns the executable of NVIDIA's RDMA shared device plugin.
func (s PartSet) SharedDevicePlugin() string {
	return filepath.Join(s.dir, "k8s-rdma-shared-dev-plugin", "k8s-rdma-shared-dp")
}

// Helm returns Helm's executable.
func (s PartSet) Helm() string { return filepath.Join(s.dir, "helm", "helm") }

// Definitions returns the directory with the CustomResourceDefinitions of PodMonitor, PrometheusRule and
// SecurityContextConstraints.
func (s PartSet) Definitions() string { return filepath.Join(s.dir, "definitions") }

// Etcd returns etcd's executable.
func (s PartSet) Etcd() string { return filepath.Join(s.dir, "etcd", "etcd") }

// Selection is a group of parts that are built together.
type Selection string

const (
	// Main is the smallest useful selection: the node boots and runs containers with containerd 2.4.2 and runc. It is
	// built in two minutes.
	Main Selection = "main"
	// Test is Main and, for a host without KVM, the user-mode kernel, which is worth building only for many tests.
	Test Selection = "test"
	// Core is Main, all other versions of containerd, CRI-O, Podman, Docker, nvidia-ctk, and the CNI plugins.
	Core Selection = "core"
	// Kubernetes contains what a cluster needs. Building it takes minutes.
	Kubernetes Selection = "kubernetes"
	// All is Core, Kubernetes, and Test.
	All Selection = "all"
	// Critest is Main and Kubernetes' tests for container runtimes.
	Critest Selection = "critest"
)

// Prepare installs and builds the parts of a selection that the cache lacks, and returns the parts. It logs what it
// does. If nothing is missing, it logs nothing, and takes much less than a second.
func Prepare(ctx context.Context, log io.Writer, selection Selection) (PartSet, error) {
	all, err := recipes()
	if err != nil {
		return PartSet{}, err
	}
	if err := installPackages(ctx, log); err != nil {
		return PartSet{}, err
	}
	selected, err := all.selected(selection)
	if err != nil {
		return PartSet{}, err
	}
	links := all.links()
	if err := ensure(ctx, all.cache, links, io.Discard); err != nil {
		return PartSet{}, err
	}
	parts := PartSet{links.dir(all.cache)}
	for _, p := range selected {
		if !p.compiled {
			if err := ensure(ctx, all.cache, p, log); err != nil {
				return PartSet{}, err
			}
		}
	}
	// Build two parts at a time: while one downloads or links, the other uses the cores. Begin with the part that takes
	// longest.
	compiling, compileCtx := errgroup.WithContext(ctx)
	compiling.SetLimit(2)
	if selection == Test || selection == All {
		machine, err := Machine(ctx, parts, Options{Log: log})
		if err != nil {
			return PartSet{}, err
		}
		if machine == "tcg" {
			compiling.Go(func() error { return all.hasten(compileCtx, log) })
		}
	}
	for _, p := range selected {
		if p.compiled {
			compiling.Go(func() error { return ensure(compileCtx, all.cache, p, log) })
		}
	}
	return parts, compiling.Wait()
}

// hasten builds the user-mode kernel for a host without KVM. If that fails, QEMU emulates the CPU instead.
func (r recipeBook) hasten(ctx context.Context, log io.Writer) error {
	err := ensure(ctx, r.cache, r.uml(), log)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(log, "rdma-node: %v. The node is emulated instead, which takes longer\n", err)
		return nil
	}
	return err
}

func (r recipeBook) selected(selection Selection) ([]part, error) {
	switch selection {
	case Main, Test:
		return r.main(), nil
	case Core:
		return r.core(), nil
	case Kubernetes:
		return r.kubernetes(), nil
	case All:
		return r.all(), nil
	case Critest:
		return r.tests(), nil
	}
	return nil, fmt.Errorf("no parts %q: choose main, test, core, kubernetes, all, or critest", selection)
}

// links is the part that contains the links to all others. A link to a part that is not built yet has no target until
// the part is built.
func (r recipeBook) links() part {
	parts := append(r.all(), r.critest(), r.uml())
	var recipe []string
	for _, p := range parts {
		recipe = append(recipe, p.name, p.dir(r.cache))
	}
	return part{name: "parts", recipe: recipe, build: func(_ context.Context, dir string) error {
		for _, p := range parts {
			if err := os.Symlink(p.dir(r.cache), filepath.Join(dir, p.name)); err != nil {
				return fmt.Errorf("link %s: %w", p.name, err)
			}
		}
		return nil
	}}
}
