// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// nodeWithRuntimes is a short root, for sockets, with HCAs and a process of container 1 that has enough memlock.
func nodeWithRuntimes(t *testing.T) (root string) {
	t.Helper()
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "unlimited unlimited", ipcLocked)
	root = scratch.Folder(t)
	if err := files.Write(root); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "")
	return root
}

// The containers of all runtimes count: those of k3s beside Docker's containerd, whether that serves CRI or not.
func TestStatusAsksAllRuntimes(t *testing.T) {
	for name, docker := range map[string]critest.Options{
		"Docker's containerd serves CRI and has no pods": {Path: "run/containerd/containerd.sock"},
		"Docker's containerd does not serve CRI":         {Path: "run/containerd/containerd.sock", NoCRI: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := nodeWithRuntimes(t)
			docker.Root = root
			critest.Serve(t, docker)
			k3s := critest.Serve(t, critest.Options{Root: root, Path: "run/k3s/containerd/containerd.sock"},
				holder(1, 0, "train-0"))
			for _, args := range []string{"status", "repair --dry-run"} {
				stdout, stderr, status := runCommand(t, append(strings.Fields(args), "--config",
					configFile(t, "{}"), "--root", root)...)
				want := map[string]string{"status": "ml/train-0  main", "repair --dry-run": "looked at 1 RDMA container\n"}[args]
				if status != 0 || !strings.Contains(stdout, want) || !strings.Contains(stderr,
					"rdma-spec: runtime: containerd v2.4.2 at "+k3s.Socket+"\n") {
					t.Errorf("%s: exit status %d\n%s%s", args, status, stdout, stderr)
				}
				said := map[bool]string{
					true:  "rdma-spec: skipped: " + root + "/run/containerd/containerd.sock: it does not serve CRI",
					false: "rdma-spec: runtime: containerd v2.4.2 at " + root + "/run/containerd/containerd.sock\n",
				}[docker.NoCRI]
				if !strings.Contains(stderr, said) {
					t.Errorf("%s says %q, want %q", args, stderr, said)
				}
			}
		})
	}
}

// A runtime that does not answer for one container says nothing about the others. It is unknown whether that one is as
// it should be.
func TestStatusWhereOneContainerFails(t *testing.T) {
	root := nodeWithRuntimes(t)
	sick := holder(2, 0, "sick")
	sick.Fails = errors.New("its shim does not answer")
	runtime := critest.Serve(t, critest.Options{}, holder(1, 0, "train-0"), sick)
	node := []string{"--config", configFile(t, "{}"), "--root", root, "--runtime-endpoint", runtime.Socket}
	stdout, stderr, status := runCommand(t, append([]string{"status"}, node...)...)
	want := "ml/sick     main       none    -          -         -       unknown  unknown  its shim does not answer\n" +
		"ml/train-0  main       device  unlimited  yes       mlx5_0  unknown  ok       -\n"
	if status != 3 || !strings.HasSuffix(stdout, want) || !strings.HasSuffix(stderr,
		"rdma-spec: cannot look at 1 container\n") {
		t.Errorf("status: exit status %d, stderr %q\n%s", status, stderr, stdout)
	}
	stdout, stderr, status = runCommand(t, append([]string{"repair", "--dry-run"}, node...)...)
	if status != 3 || stdout != "nothing to raise: looked at 1 RDMA container\n" || !strings.Contains(stderr,
		"rdma-spec: ml/sick main: left alone: its shim does not answer\n") {
		t.Errorf("repair: exit status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	stdout, _, status = runCommand(t, append([]string{"status", "ml/train-0"}, node...)...)
	if status != 0 || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, "ml/train-0") {
		t.Errorf("of the other pod: exit status %d\n%s", status, stdout)
	}
	_, stderr, status = runCommand(t, append([]string{"status", "ml/train-0", "ml/elsewhere"}, node...)...)
	if status != 3 || stderr != "rdma-spec: no container of pod ml/elsewhere runs on this node\n" {
		t.Errorf("of an unknown pod: exit status %d, %s", status, stderr)
	}
	other := critest.Serve(t, critest.Options{}, other(1, "unrelated"))
	stdout, stderr, status = runCommand(t, "status", "ml/unrelated", "--config", configFile(t, "{}"), "--root", root,
		"--runtime-endpoint", other.Socket)
	if status != 0 || strings.Count(stdout, "\n") != 1 || !strings.Contains(stderr,
		"rdma-spec: ml/unrelated main is not an RDMA container\n") {
		t.Errorf("of a pod without RDMA: exit status %d, stderr %q\n%s", status, stderr, stdout)
	}
}

// Where the kubelet does not answer, an empty list does not mean that there is no RDMA container.
func TestStatusWhereTheKubeletDoesNotAnswer(t *testing.T) {
	root := nodeWithRuntimes(t)
	mofed := other(2, "b") // which is looked at twice
	mofed.Spec.Process.Env = []string{"NVIDIA_MOFED=enabled"}
	runtime := critest.Serve(t, critest.Options{}, other(1, "a"), mofed)
	for _, args := range []string{"status", "repair"} {
		stdout, stderr, status := runCommand(t, args, "--config", configFile(t, "optIn: {resources: [rdma/*]}"), "--root",
			root, "--runtime-endpoint", runtime.Socket)
		if status != 3 || strings.Count(stdout, "\n") != 1 || strings.Count(stderr, "the kubelet did not report") != 1 ||
			!strings.HasSuffix(stderr, "rdma-spec: cannot look at 2 containers\n") {
			t.Errorf("%s: exit status %d\n%s%s", args, status, stdout, stderr)
		}
	}
	node := []string{"--config", configFile(t, "optIn: {resources: [rdma/*]}"), "--root", root, "--runtime-endpoint",
		runtime.Socket}
	there := call("", append([]string{"status", "ml/a"}, node...)...)
	here := call("", "status", "ml/a", "--root", collected(t, root, node...))
	if diff := cmp.Diff(there, here); diff != "" || there.Status != 3 ||
		!strings.Contains(there.Stderr, "rdma-spec: ml/a main may be an RDMA container\n") {
		t.Errorf("%+v, -there +here:\n%s", there, diff)
	}
}
