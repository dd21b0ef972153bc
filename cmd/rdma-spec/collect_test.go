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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// collected calls collect on the node below a root and returns the archive.
func collected(t *testing.T, root string, args ...string) (file string) {
	t.Helper()
	file = filepath.Join(scratch.Folder(t), "node.tar.gz")
	got := call("", append([]string{"collect", "--root", root, "--to", file}, args...)...)
	if got.Status != 0 || got.Stdout != "" {
		t.Fatalf("collect: %+v", got)
	}
	return file
}

// What is no file is not written, and not changed either.
func TestCollectIntoWhatIsNoFile(t *testing.T) {
	folder := scratch.Folder(t)
	before, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	if got := call("", "collect", "--root", hcatest.V100(t), "--to", folder); got.Status != 3 ||
		!strings.Contains(got.Stderr, folder) {
		t.Errorf("%+v", got)
	}
	after, err := os.Stat(folder)
	if err != nil || after.Mode() != before.Mode() {
		t.Errorf("the folder's mode was %v and is %v, %v", before.Mode(), after.Mode(), err)
	}
}

// Whatever the node, devices says elsewhere what it says there. JSON has all that the table has.
func TestCollectedDevices(t *testing.T) {
	for name, node := range map[string]func(testing.TB) string{
		"A100": hcatest.A100, "RoCE": hcatest.RoCE, "EFA": hcatest.EFA, "NoRDMA": hcatest.NoRDMA, "GB300": hcatest.GB300,
		"OmniPath": hcatest.OmniPath, "SRIOV": hcatest.SRIOV, "Scalable": hcatest.Scalable, "DualPort": hcatest.DualPort,
	} {
		t.Run(name, func(t *testing.T) {
			root := node(t)
			there, here := call("", "devices", "--root", root, "-o", "json"),
				call("", "devices", "--root", collected(t, root), "-o", "json")
			if diff := cmp.Diff(there, here); diff != "" || there.Status != 0 {
				t.Errorf("exit status %d, -there +here:\n%s", there.Status, diff)
			}
		})
	}
	// A broken node is copied as far as it goes.
	collected(t, hcatest.Broken(t))
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
	for want, args := range map[string][]string{
		"mlx5_1": {"explain", "-f", "../../deploy/examples/annotation-one-hca.yaml", "-o", "json",
			"--config", "testdata/explain/defaults.yaml"},
		"231": {"generate", "--devices", "mlx5_1"},
	} {
		if got := call("", append(args, "--root", file)...); !strings.Contains(got.Stdout, want) {
			t.Errorf("%s: %+v", args[0], got)
		}
	}
	for want, args := range map[string][]string{
		"when the node was collected: no policy is in force": {"explain", "--root", file,
			"-f", "../../deploy/examples/annotation-one-hca.yaml"},
		"rdma-spec: this is a copy of a node: call the command on the node itself\n": {"repair", "--root", file},
		"cannot read the configuration: stat x: no such file or directory": {"status",
			"--root", file, "--config", "x"},
		"cannot unpack collect_test.go as archive of rdma-spec collect: gzip: invalid header\n": {"devices",
			"--root", "collect_test.go"},
		"node.tar.gz is no folder": {"configure", "nri", "--root", file, "--dry-run"},
	} {
		if got := call("", args...); got.Status != 3 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A file that is there does not lend its mode to an archive.
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
	for _, args := range [][]string{{"doctor", "--only", "gids-free", "-o", "json"}, {"devices", "-o", "json"}} {
		there, here := call("", append(args, "--root", root)...), call("", append(args, "--root", file)...)
		if diff := cmp.Diff(there, here); diff != "" {
			t.Errorf("%s (-there +here):\n%s", args[0], diff)
		}
	}
}

// Of a program only the existence counts, so the doctor finds elsewhere also one that is too large for an archive.
func TestCollectedPrograms(t *testing.T) {
	root := hcatest.V100Node().Files().With(hcatest.Files{"opt/nri/plugins/90-rdma": "",
		"opt/nri/plugins/10-ulimit-adjuster": ""}).Root(t)
	if err := os.Truncate(filepath.Join(root, "opt/nri/plugins/10-ulimit-adjuster"), archive.MaxFile+1<<20); err != nil {
		t.Fatal(err)
	}
	file := collected(t, root)
	there, here := call("", "doctor", "--only", "nri-rivals", "--root", root), call("", "doctor", "--only",
		"nri-rivals", "--root", file)
	if diff := cmp.Diff(there, here); diff != "" || !strings.Contains(there.Stdout,
		"The runtime launches /opt/nri/plugins/10-ulimit-adjuster") {
		t.Errorf("%+v (-there +here):\n%s", there, diff)
	}
}

// The spec of a privileged container has every device of the node: each CPU has two, each disk and terminal one. A large
// node has many such containers, and an archive all the same.
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
	runtime := critest.Serve(t, critest.Options{}, containers...)
	node := []string{"--config", configFile(t, "{}"), "--root", files.Root(t), "--runtime-endpoint", runtime.Socket}
	there, here := call("", append([]string{"status"}, node...)...), call("", "status", "--root",
		collected(t, node[3], node...))
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
	files["etc/cni/net.d/calico-kubeconfig"] = "users: [{user: {token: s3cr3t}}]\n"
	files["etc/rdma-spec/config.yaml"] = "{} # s3cr3t\n"
	files["proc/1/environ"] = "SECRET=s3cr3t\x00"
	good, low := holder(2, 1, "train-1", memlockOf(math.MaxUint64)), holder(1, 0, "train-0")
	low.Spec.Process.Env = []string{"SECRET=s3cr3t"}
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, low, good)
	node := []string{"--config", configFile(t, "{}"), "--root", root, "--runtime-endpoint", runtime.Socket}
	file := collected(t, root, node...)
	if asked := runtime.Asked(); asked != 2 {
		t.Errorf("the runtime was asked %d times about 2 containers", asked)
	}
	for _, args := range [][]string{{}, {"-o", "json"}, {"ml/train-1"}} {
		there := call("", append(append([]string{"status"}, args...), node...)...)
		here := call("", append([]string{"status", "--root", file}, args...)...)
		if diff := cmp.Diff(there, here); diff != "" || !strings.Contains(there.Stdout, "train-1") {
			t.Errorf("status %v, -there +here:\n%s", args, diff)
		}
	}
	if got := call("", "status", "--root", file, "--config", configFile(t, "memlock: 4Mi")); got.Status != 0 ||
		strings.Contains(got.Stdout, "below") {
		t.Errorf("a copy by a new policy: %+v", got)
	}
	if got := call("", "doctor", "--root", file, "--only", "container-memlock", "--config",
		"/nowhere"); !strings.Contains(got.Stdout, "/nowhere") {
		t.Errorf("a copy by no policy: %+v", got)
	}
	if got := call("", "status", "--root", file, "ml/web"); got.Status != 3 ||
		got.Stderr != "rdma-spec: when the node was collected: no container of pod ml/web runs on this node\n" {
		t.Errorf("%+v", got)
	}
	unpacked, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remove() }()
	err = filepath.WalkDir(unpacked, func(name string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(scratch.Read(t, name), "s3cr3t") {
			t.Errorf("%s has the secret", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Where status could not look, it says elsewhere why.
	alone := collected(t, hcatest.V100(t))
	if got := call("", "status", "--root", alone); got.Status != 3 || !strings.Contains(got.Stderr,
		"when the node was collected: no policy is in force: ") {
		t.Errorf("%+v", got)
	}
}

// The doctor finds elsewhere what it finds there, byte for byte.
func TestCollectedFindings(t *testing.T) {
	mixed, containers := mixedNode()
	roots := map[string]string{"mixed": mixed.Root(t), "Broken": hcatest.Broken(t)}
	for name, node := range map[string]func(testing.TB) string{
		"A100": hcatest.A100, "SRIOV": hcatest.SRIOV, "NoRDMA": hcatest.NoRDMA,
	} {
		roots[name] = node(t)
	}
	runtime := critest.Serve(t, critest.Options{}, containers...)
	for name, root := range roots {
		t.Run(name, func(t *testing.T) {
			node := []string{"--root", root, "--config", configFile(t, "{}"), "--runtime-endpoint", runtime.Socket}
			there := call("", append([]string{"doctor", "-o", "json"}, node...)...)
			here := call("", "doctor", "-o", "json", "--root", collected(t, root, node[2:]...))
			if diff := cmp.Diff(there, here); diff != "" {
				t.Errorf("-there +here:\n%s", diff)
			}
			if there.Status != 1 || strings.Count(there.Stdout, `"status"`) < 30 {
				t.Errorf("the node has no faults that could get lost: %+v", there)
			}
		})
	}
}
