// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	rdmanode "github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// collected calls collect on the node below a root and returns the archive.
func collected(t *testing.T, root string, args ...string) (file string) {
	t.Helper()
	file = filepath.Join(scratch.Folder(t), "node.tar.gz")
	if got := words("collect --root "+root+" --to "+file, args...); got.Status != 0 || got.Stdout != "" {
		t.Fatalf("collect: %+v", got)
	}
	return file
}

// An archive can be read again and again: it is the same each time, and nothing of it stays on the disk.
func TestArchivesAsRoot(t *testing.T) {
	temporary := scratch.Folder(t)
	t.Setenv("TMPDIR", temporary)
	root := hcatest.V100(t)
	file := collected(t, root)
	again := collected(t, file)
	if diff := cmp.Diff(scratch.Read(t, file), scratch.Read(t, again)); diff != "" {
		t.Error("the copy of a copy differs from it")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
	compareCalls(t, "archive", map[string]string{"FILE": file}, `
		generate --devices mlx5_1 --root FILE
		explain -f ../../deploy/examples/annotation-one-hca.yaml --config testdata/explain/defaults.yaml --root FILE
		repair --root FILE
		status --config x --root FILE
		devices --root collect_test.go
		configure nri --dry-run --root FILE`, gist)
	got := words("explain -f ../../deploy/examples/annotation-one-hca.yaml --root", file)
	if got.Status != 3 || !strings.Contains(got.Stderr, "when the node was collected: no policy is in force") {
		t.Errorf("explain: %+v", got)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// What is no file is not written, and not changed either: a file that is there does not lend its mode to an archive.
	if err := os.Chmod(temporary, 0o705); err != nil {
		t.Fatal(err)
	}
	if got := call("", "collect", "--root", root, "--to", temporary); got.Status != 3 || !strings.Contains(got.Stderr, temporary) {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(temporary); err != nil || info.Mode().Perm() != 0o705 {
		t.Errorf("%v, %v, want mode 0705", info.Mode(), err)
	}
	if err := os.Chmod(again, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := call("", "collect", "--root", root, "--to", again); got.Status != 0 {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(again); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
}

// Most of a port's places for GIDs are empty. These are left out, and the doctor still knows whether the table is full.
func TestCollectLeavesEmptyGIDsOut(t *testing.T) {
	files := hcatest.RoCENode().Files()
	full, almost := hcatest.Folder("mlx5_0", "0000:18:00.0")+"/ports/1/gids/",
		hcatest.Folder("mlx5_1", "0000:3b:00.0")+"/ports/1/gids/"
	for i := range 16 {
		files[full+strconv.Itoa(i)] = fmt.Sprintf("fe80:0000:0000:0000:ba59:9fff:fea9:%04x\n", i+1)
		files[almost+strconv.Itoa(i)] = files[full+strconv.Itoa(i)]
		if i >= 10 {
			files[almost+strconv.Itoa(i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
		}
	}
	root := files.Root(t)
	file := collected(t, root)
	unpacked, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remove() }()
	for name, want := range map[string]int{"mlx5_0": 16, "mlx5_1": 11} {
		if got, err := filepath.Glob(filepath.Join(unpacked, "sys/class/infiniband", name,
			"ports/1/gids/*")); len(got) != want || err != nil {
			t.Errorf("%s has %d GIDs in the archive, want %d: %v", name, len(got), want, err)
		}
	}
	for _, args := range []string{"doctor --only gids-free -o json --root", "devices -o json --root"} {
		if diff := cmp.Diff(words(args, root), words(args, file)); diff != "" {
			t.Errorf("%s (-there +here):\n%s", args, diff)
		}
	}
}

// The spec of a privileged container has every device of the node, and a large node has many such containers.
func TestCollectOfALargeNode(t *testing.T) {
	files := hcatest.V100Node().Files()
	var containers []critest.Container
	for n := range 5 {
		addProcess(files, n+1, "unlimited unlimited", ipcLocked)
		c := holder(n+1, 0, fmt.Sprintf("agent-%d", n))
		for minor := range int64(10_000) {
			c.Spec.Linux.Devices = append(c.Spec.Linux.Devices, specs.LinuxDevice{
				Path: fmt.Sprintf("/dev/cpu/%d/msr", minor), Type: "c", Major: 202, Minor: minor})
		}
		containers = append(containers, c)
	}
	node := by(t, "{}", serve(t, files.Root(t), containers...))
	there, here := words("status", node...), words("status --root", collected(t, node[3], node...))
	if diff := cmp.Diff(there, here); diff != "" || strings.Count(there.Stdout, " ok ") != len(containers) {
		t.Errorf("%+v, -there +here:\n%s", there, diff)
	}
}

func TestCollectLists(t *testing.T) {
	root := hcatest.V100(t)
	listed := call("", "collect", "--root", root, "--list")
	if listed.Status != 0 || !strings.Contains(listed.Stdout, "       6  rdma-spec/version\n") ||
		!strings.Contains(listed.Stdout, "    link  sys/class/infiniband/mlx5_0 -> ") {
		t.Errorf("%+v", listed)
	}
	written := call("", "collect", "--root", root)
	if !strings.HasPrefix(written.Stderr, listed.Stdout) || !strings.HasPrefix(written.Stdout, "\x1f\x8b") {
		t.Errorf("the archive is not listed as --list has it:\n%s", cmp.Diff(listed.Stdout, written.Stderr))
	}
	if got := call("", "collect", "--root", "/nonexistent"); got.Status != 3 || got.Stdout != "" {
		t.Errorf("%+v", got)
	}
}

// status of an archive shows what it found on the node, where alone the runtimes and the policy in force can be asked.
func TestCollectedStatus(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "8388608 8388608", plain)
	addProcess(files, 2, "unlimited unlimited", ipcLocked)
	good, low := holder(2, 1, "train-1", memlockOf(math.MaxUint64)), holder(1, 0, "train-0")
	low.Spec.Process.Env = []string{"SECRET=s3cr3t"}
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, low, good)
	node := by(t, "{}", []string{"--root", root, "--runtime-endpoint", runtime.Socket})
	file := collected(t, root, node...)
	if asked := runtime.Asked(); asked != 2 {
		t.Errorf("the runtime was asked %d times about 2 containers", asked)
	}
	for _, args := range []string{"status", "status -o json", "status ml/train-1"} {
		there, here := words(args, node...), words(args, "--root", file)
		if diff := cmp.Diff(there, here); diff != "" || !strings.Contains(there.Stdout, "train-1") {
			t.Errorf("%s, -there +here:\n%s", args, diff)
		}
	}
	unknown := outcome{3, "", "rdma-spec: when the node was collected: no container of pod ml/web runs on this node\n"}
	if diff := cmp.Diff(unknown, words("status ml/web --root", file)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	unpacked, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remove() }()
	if listing := scratch.Read(t, filepath.Join(unpacked, rdmanode.AnswersDir, "listing.json")); strings.Contains(listing,
		"s3cr3t") || !strings.Contains(listing, "train-0") {
		t.Errorf("the secret is in, or the container is not: %s", listing)
	}
	// Where status could not look, it says elsewhere why.
	alone := collected(t, hcatest.V100(t))
	if got := words("status --root", alone); got.Status != 3 || !strings.Contains(got.Stderr,
		"when the node was collected: no policy is in force: ") {
		t.Errorf("%+v", got)
	}
}

// Whatever the node, devices and the doctor say elsewhere what they say there, byte for byte. JSON has all that tables
// have.
func TestCollectedNodes(t *testing.T) {
	mixed, containers := mixedNode()
	roots := map[string]string{"mixed": mixed.Root(t), "Broken": hcatest.Broken(t)}
	for name, node := range map[string]func(testing.TB) string{
		"A100": hcatest.A100, "RoCE": hcatest.RoCE, "EFA": hcatest.EFA, "NoRDMA": hcatest.NoRDMA, "GB300": hcatest.GB300,
		"OmniPath": hcatest.OmniPath, "SRIOV": hcatest.SRIOV, "Scalable": hcatest.Scalable, "DualPort": hcatest.DualPort,
	} {
		roots[name] = node(t)
	}
	runtime := critest.Serve(t, critest.Options{}, containers...)
	for name, root := range roots {
		t.Run(name, func(t *testing.T) {
			node := by(t, "{}", []string{"--root", root, "--runtime-endpoint", runtime.Socket})
			copied := collected(t, root, node...)
			there, here := words("doctor -o json", node...), words("doctor -o json --root", copied)
			if diff := cmp.Diff(there, here); diff != "" {
				t.Errorf("doctor, -there +here:\n%s", diff)
			}
			if there.Status != 1 || strings.Count(there.Stdout, `"status"`) < 30 {
				t.Errorf("the node has no faults that could get lost: %+v", there)
			}
			there, here = words("devices -o json --root", root), words("devices -o json --root", copied)
			if diff := cmp.Diff(there, here); diff != "" && name != "Broken" { // which is copied as far as it goes
				t.Errorf("devices, -there +here:\n%s", diff)
			}
		})
	}
}
