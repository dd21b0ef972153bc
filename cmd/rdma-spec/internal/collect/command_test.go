// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect_test

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
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/devices"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/checks"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/status"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) {
	node.SecondLookAfter = 0
	os.Exit(m.Run())
}

// program has the commands that these tests call.
var program = clitest.New(node.OpenRoot, func() []*cobra.Command {
	return []*cobra.Command{collect.Command(checks.All()), status.Command(), devices.Command(), doctor.Command(checks.All())}
})

// Most of a port's places for GIDs are empty. These are left out, and the doctor still knows whether the table is full.
func TestCollectLeavesEmptyGIDsOut(t *testing.T) {
	files := hcatest.RoCENode().Files()
	full, almost := hcatest.Dir("mlx5_0", "0000:18:00.0")+"/ports/1/gids/",
		hcatest.Dir("mlx5_1", "0000:3b:00.0")+"/ports/1/gids/"
	for i := range 16 {
		files[full+strconv.Itoa(i)] = fmt.Sprintf("fe80:0000:0000:0000:ba59:9fff:fea9:%04x\n", i+1)
		files[almost+strconv.Itoa(i)] = files[full+strconv.Itoa(i)]
		if i >= 10 {
			files[almost+strconv.Itoa(i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
		}
	}
	root := files.Root(t)
	file := program.Collect(t, root)
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
		if diff := cmp.Diff(program.Words(args, root), program.Words(args, file)); diff != "" {
			t.Errorf("%s (-there +here):\n%s", args, diff)
		}
	}
}

// The spec of a privileged container has every device of the node, and a large node has many such containers.
func TestCollectOfALargeNode(t *testing.T) {
	files := hcatest.V100Node().Files()
	var containers []critest.Container
	for n := range 5 {
		nodetest.AddProcess(files, n+1, "unlimited unlimited", nodetest.IPCLocked)
		c := nodetest.Holder(n+1, 0, fmt.Sprintf("agent-%d", n))
		for minor := range int64(10_000) {
			c.Spec.Linux.Devices = append(c.Spec.Linux.Devices, specs.LinuxDevice{
				Path: fmt.Sprintf("/dev/cpu/%d/msr", minor), Type: "c", Major: 202, Minor: minor})
		}
		containers = append(containers, c)
	}
	node := nodetest.By(t, "{}", nodetest.Serve(t, files.Root(t), containers...))
	there, here := program.Words("status", node...), program.Words("status --root", program.Collect(t, node[3], node...))
	if diff := cmp.Diff(there, here); diff != "" || strings.Count(there.Stdout, " ok ") != len(containers) {
		t.Errorf("%+v, -there +here:\n%s", there, diff)
	}
}

func TestCollectLists(t *testing.T) {
	root := hcatest.V100(t)
	listed := program.Call("", "collect", "--root", root, "--list")
	if listed.Status != 0 || !strings.Contains(listed.Stdout, "       6  rdma-spec/version\n") ||
		!strings.Contains(listed.Stdout, "    link  sys/class/infiniband/mlx5_0 -> ") {
		t.Errorf("%+v", listed)
	}
	written := program.Call("", "collect", "--root", root)
	if !strings.HasPrefix(written.Stderr, listed.Stdout) || !strings.HasPrefix(written.Stdout, "\x1f\x8b") {
		t.Errorf("the archive is not listed as --list has it:\n%s", cmp.Diff(listed.Stdout, written.Stderr))
	}
	if got := program.Call("", "collect", "--root", "/nonexistent"); got.Status != 3 || got.Stdout != "" {
		t.Errorf("%+v", got)
	}
}

// status of an archive shows what it found on the node, where alone the runtimes and the policy in force can be asked.
func TestCollectedStatus(t *testing.T) {
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "8388608 8388608", nodetest.Plain)
	nodetest.AddProcess(files, 2, "unlimited unlimited", nodetest.IPCLocked)
	good, low := nodetest.Holder(2, 1, "train-1", nodetest.Memlock(math.MaxUint64)), nodetest.Holder(1, 0, "train-0")
	low.Spec.Process.Env = []string{"SECRET=s3cr3t"}
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, low, good)
	flags := nodetest.By(t, "{}", []string{"--root", root, "--runtime-endpoint", runtime.Socket})
	file := program.Collect(t, root, flags...)
	if asked := runtime.Asked(); asked != 2 {
		t.Errorf("the runtime was asked %d times about 2 containers", asked)
	}
	for _, args := range []string{"status", "status -o json", "status ml/train-1"} {
		there, here := program.Words(args, flags...), program.Words(args, "--root", file)
		if diff := cmp.Diff(there, here); diff != "" || !strings.Contains(there.Stdout, "train-1") {
			t.Errorf("%s, -there +here:\n%s", args, diff)
		}
	}
	unknown := clitest.Outcome{Status: 3, Stdout: "", Stderr: "rdma-spec: an error occurred when the support " +
		"bundle was written: no container of pod ml/web is running on this node\n"}
	if diff := cmp.Diff(unknown, program.Words("status ml/web --root", file)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	unpacked, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remove() }()
	if listing := scratch.Read(t, filepath.Join(unpacked, node.AnswersDir, "listing.json")); strings.Contains(listing,
		"s3cr3t") || !strings.Contains(listing, "train-0") {
		t.Errorf("the secret is in, or the container is not: %s", listing)
	}
	// Where status could not look, it says elsewhere why.
	alone := program.Collect(t, hcatest.V100(t))
	if got := program.Words("status --root", alone); got.Status != 3 || !strings.Contains(got.Stderr,
		"when the support bundle was written: no policy is in force: ") {
		t.Errorf("%+v", got)
	}
}

// Whatever the node, devices and the doctor say elsewhere what they say there, byte for byte. JSON has all that tables
// have.
func TestCollectedNodes(t *testing.T) {
	mixed, containers := nodetest.Mixed()
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
			node := nodetest.By(t, "{}", []string{"--root", root, "--runtime-endpoint", runtime.Socket})
			copied := program.Collect(t, root, node...)
			there, here := program.Words("doctor -o json", node...), program.Words("doctor -o json --root", copied)
			if diff := cmp.Diff(there, here); diff != "" {
				t.Errorf("doctor, -there +here:\n%s", diff)
			}
			if there.Status != 1 || strings.Count(there.Stdout, `"status"`) < 30 {
				t.Errorf("the node has no faults that could get lost: %+v", there)
			}
			there, here = program.Words("devices -o json --root", root), program.Words("devices -o json --root", copied)
			if diff := cmp.Diff(there, here); diff != "" && name != "Broken" { // which is copied as far as it goes
				t.Errorf("devices, -there +here:\n%s", diff)
			}
		})
	}
}
