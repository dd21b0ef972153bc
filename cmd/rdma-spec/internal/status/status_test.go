// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/checks"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
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
	return []*cobra.Command{status.Command(), repair.Command(), collect.Command(checks.All())}
})

func TestStatus(t *testing.T) {
	files, containers := nodetest.Mixed()
	root := files.Root(t)
	names := map[string]string{"ROOT": root, "SOCKET": critest.Serve(t, critest.Options{}, containers...).Socket,
		"CONFIG": clitest.File(t, nodetest.MixedConfig)}
	program.Compare(t, "mixed", names, `
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET -o json
		# what containers lack is no failure of a report, and a node without a plugin is
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET --report
		status --root ROOT --runtime-endpoint SOCKET --report`)
}

// What status and repair say of nodes where all is well, little is known, or nothing runs, and their exit statuses.
func TestStatusOutcomes(t *testing.T) {
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "unlimited unlimited", nodetest.IPCLocked)
	nodetest.AddProcess(files, 4, "8388608 8388608", nodetest.Plain)
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "")
	root := files.Root(t)
	good, unrelated, sick := nodetest.Holder(1, 0, "train-0"), nodetest.Other(2, "unrelated"), nodetest.Holder(3, 0, "sick")
	sick.Fails = errors.New("its shim does not answer")
	mofed := nodetest.Other(5, "mofed") // which is looked at twice
	mofed.Spec.Process.Env = []string{"NVIDIA_MOFED=enabled"}
	names := map[string]string{"NODE": root, "NOTHING": scratch.Dir(t),
		"EMPTY": clitest.File(t, "{}"), "WRONG": clitest.File(t, "memlok: 1"), "RESOURCES": clitest.File(t, "optIn: {resources: [rdma/*]}")}
	for name, runtime := range map[string]*critest.Runtime{
		"CRI-O":     critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"}, good),
		"UNRELATED": critest.Serve(t, critest.Options{}, unrelated),
		"SICK":      critest.Serve(t, critest.Options{}, good, sick),
		"LOW":       critest.Serve(t, critest.Options{}, nodetest.Holder(4, 0, "low")),
		"SEVERAL":   critest.Serve(t, critest.Options{}, unrelated, mofed),
	} {
		names[name] = runtime.Socket
	}
	program.Compare(t, "outcomes", names, `
		status --config EMPTY --root NODE --runtime-endpoint CRI-O
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED -o json
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED ml/unrelated
		repair --config EMPTY --root NODE --runtime-endpoint LOW --dry-run -o json

		# a runtime that does not answer for one container says nothing about the others, and that one is unknown
		status --config EMPTY --root NODE --runtime-endpoint SICK
		status --config EMPTY --root NODE --runtime-endpoint SICK ml/train-0
		status --config EMPTY --root NODE --runtime-endpoint SICK ml/train-0 ml/elsewhere
		repair --config EMPTY --root NODE --runtime-endpoint SICK --dry-run

		# where the kubelet does not answer, an empty list does not mean that there is no RDMA container
		status --config RESOURCES --root NODE --runtime-endpoint SEVERAL
		status --config RESOURCES --root NODE --runtime-endpoint SEVERAL ml/unrelated
		repair --config RESOURCES --root NODE --runtime-endpoint SEVERAL

		# without a policy in force and without --config, nothing is judged by the defaults, which give more than any policy
		status --root NODE --runtime-endpoint CRI-O
		repair --dry-run --root NODE --runtime-endpoint CRI-O
		repair --root NODE --runtime-endpoint CRI-O

		status --config EMPTY --root NOTHING
		status --root NOTHING
		status --config EMPTY --runtime-endpoint /nonexistent.sock
		status --config WRONG
		status --config /nonexistent.yaml`)
	several := []string{"ml/unrelated", "--config", names["RESOURCES"], "--root", root, "--runtime-endpoint", names["SEVERAL"]}
	there, here := program.Words("status", several...), program.Words("status ml/unrelated", "--root", program.Collect(t, root, several[1:]...))
	if diff := cmp.Diff(there, here); diff != "" {
		t.Errorf("-there +here:\n%s", diff)
	}
	// The containers of all runtimes count: those of k3s beside Docker's containerd, which does not serve CRI.
	critest.Serve(t, critest.Options{NoCRI: true, Root: root, Path: "run/containerd/containerd.sock"})
	critest.Serve(t, critest.Options{Root: root, Path: "run/k3s/containerd/containerd.sock"}, good)
	program.Compare(t, "several-runtimes", names, `
		status --config EMPTY --root NODE
		repair --dry-run --config EMPTY --root NODE`)
}

// However CNI gives a pod an interface of its HCA, status names the HCA.
func TestStatusOfNetworks(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		held  int
	}{
		"host-device":                 {hcatest.HostDeviceNode().Files(), 0},
		"SR-IOV":                      {hcatest.VirtualNode().Files(), 1},
		"SR-IOV, rdma-cni, exclusive": {hcatest.ExclusiveFiles("mlx5_0", "mlx5_2"), 1},
	} {
		nodetest.AddProcess(test.files, 1, "unlimited unlimited", nodetest.IPCLocked)
		got := program.Words("status", nodetest.By(t, "{}", nodetest.Serve(t, test.files.Root(t), nodetest.Holder(1, test.held, "train-0")))...)
		want := fmt.Sprintf("ml/train-0  main       device  unlimited  yes       mlx5_%d  unknown  ok     -\n", test.held)
		if got.Status != 0 || !strings.HasSuffix(got.Stdout, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// status and repair judge alike, by all processes and the stored spec.
func TestStatusAndRepairAgree(t *testing.T) {
	files := hcatest.V100Node().Files()
	var containers []critest.Container
	below := map[string]bool{}
	add := func(c critest.Container, isBelow bool, processes ...string) {
		containers = append(containers, c)
		below[c.Pod] = isBelow
		for i, memlock := range processes {
			n := c.PID + 1000*i
			nodetest.AddProcess(files, n, memlock, nodetest.Plain)
			files[fmt.Sprintf("proc/%d/cgroup", n)] = "0::/kubepods/" + c.ID + "\n"
		}
	}
	const high, low = "unlimited unlimited", "8388608 8388608"
	enough, little := nodetest.Memlock(math.MaxUint64), nodetest.Memlock(65536)
	add(nodetest.Holder(1, 0, "good", enough), false, high, high)
	add(nodetest.Holder(2, 0, "low"), true, low)
	add(nodetest.Holder(3, 0, "low-child"), true, high, high, low)
	add(nodetest.Holder(4, 0, "low-spec", little), true, high)
	add(nodetest.Holder(5, 0, "spec-without"), false, high)
	add(nodetest.Holder(6, 0, "lowered-itself", enough), false, high, "8388608 unlimited")
	add(nodetest.Holder(7, 0, "lowered-for-good", enough), false, high, low)
	add(nodetest.Holder(8, 0, "signed", nodetest.Memlock(math.MaxInt64)), false, "9223372036854775807 9223372036854775807")
	node := nodetest.By(t, "{}", nodetest.Serve(t, files.Root(t), containers...))
	listed, repair := program.Words("status -o json", node...), program.Words("repair --dry-run", node...)
	var seen struct {
		Containers []struct {
			Pod, State string
			Problems   []string
			Fix        string
		}
	}
	if err := json.Unmarshal([]byte(listed.Stdout), &seen); err != nil || listed.Status != 1 || repair.Status != 1 ||
		len(seen.Containers) != len(below) {
		t.Fatalf("%v: status: %+v\nrepair --dry-run: %+v", err, listed, repair)
	}
	for _, c := range seen.Containers {
		if (c.State == "below") != below[c.Pod] || c.State != "below" && c.State != "ok" {
			t.Errorf("status: %s is %s, %v", c.Pod, c.State, c.Problems)
		}
		if raised := strings.Contains(repair.Stdout, "ml/"+c.Pod+" main: memlock would be raised"); raised != below[c.Pod] {
			t.Errorf("repair --dry-run raises %s: %v", c.Pod, raised)
		}
		if c.State == "below" { // the fix can be pasted, and is about the same node and policy
			hint := strings.TrimPrefix(c.Fix, "rdma-spec ")
			if got := program.Words(hint, "--dry-run"); got.Status != 1 || strings.Count(got.Stdout, "\n") != 1 ||
				!strings.HasPrefix(got.Stdout, "ml/"+c.Pod+" main: ") {
				t.Errorf("%s: %+v", hint, got)
			}
		}
	}
}
