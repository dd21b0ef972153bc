// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
)

func TestMain(m *testing.M) {
	node.SecondLookAfter = 0
	os.Exit(m.Run())
}

// program has the commands that these tests call.
var program = clitest.New(node.OpenRoot, func() []*cobra.Command {
	return []*cobra.Command{repair.Command()}
})

// repairRun is a call of `rdma-spec repair` on a node in memory.
func repairRun(t *testing.T, endpoint string, on limits.Kernel, dryRun bool, pods ...string) (stdout,
	stderr string, err error) {
	t.Helper()
	var out, notes bytes.Buffer
	o := repair.Options{Options: node.Options{Config: clitest.File(t, "{}"), Root: hcatest.V100(t), Endpoint: endpoint,
		Processes: limits.On(on), Pods: pods}, DryRun: dryRun, Format: cli.FormatText}
	err = o.Repair(t.Context(), &out, &notes)
	return out.String(), withoutSources(notes.String()), err
}

// withoutSources leaves out the lines that name the policy and the runtimes.
func withoutSources(stderr string) string {
	left := ""
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "rdma-spec: policy: ") && !strings.HasPrefix(line, "rdma-spec: runtime: ") {
			left += line
		}
	}
	return left
}

// repaired is what a call of repair says, for a golden file.
func repaired(t *testing.T, endpoint string, on limits.Kernel, dryRun bool, pods ...string) string {
	t.Helper()
	stdout, stderr, err := repairRun(t, endpoint, on, dryRun, pods...)
	return fmt.Sprintf("%s--- stderr\n%s--- error: %v\n", stdout, strings.ReplaceAll(stderr, endpoint, "SOCKET"), err)
}

// containerdWith serves CRI and keeps specs, as containerd does, on one socket.
func containerdWith(t *testing.T, running []critest.Container) (*critest.Runtime, *storedspectest.Server) {
	t.Helper()
	stored := storedspectest.NewServer(t)
	for _, c := range running {
		text, err := json.Marshal(c.Spec)
		if err != nil {
			t.Fatal(err)
		}
		stored.Put(storedspec.DefaultNamespace, c.ID, text)
	}
	return critest.Serve(t, critest.Options{Also: func(s *grpc.Server) { api.RegisterContainersServer(s, stored) }},
		running...), stored
}

func TestRepair(t *testing.T) {
	processes, running := nodetest.Low()
	runtime, stored := containerdWith(t, running)
	var says golden.Cases
	says.Add(t, "1 dry run", repaired(t, runtime.Socket, processes, true))
	if processes.Sets() != 0 || stored.Updates(nodetest.ContainerID(1)) != 0 {
		t.Errorf("the dry run has set %d limits and written the stored spec %d times", processes.Sets(),
			stored.Updates(nodetest.ContainerID(1)))
	}
	says.Add(t, "2 repair", repaired(t, runtime.Socket, processes, false))
	for n, updates := range map[int]int{1: 1, 2: 0, 3: 0, 4: 1, 5: 1} {
		if got := stored.Updates(nodetest.ContainerID(n)); got != updates {
			t.Errorf("the stored spec of container %d was written %d times, want %d", n, got, updates)
		}
	}
	for n, want := range map[int][]spec.Limit{1: {spec.Unlimited, spec.Unlimited, spec.Unlimited}, 3: {nodetest.EightMiB},
		4: {spec.Unlimited, spec.Unlimited}} {
		if diff := cmp.Diff(want, processes.Soft(nodetest.ContainerID(n))); diff != "" {
			t.Errorf("limits of container %d (-want +got):\n%s", n, diff)
		}
	}
	// The fake runtime's verbose status still has the old spec of low-spec.
	says.Add(t, "3 again", repaired(t, runtime.Socket, processes, false, "ml/low", "ml/low-child"))
	says.Compare(t, "testdata/all.txt")
}

func TestRepairOfNamedPods(t *testing.T) {
	processes, running := nodetest.Low()
	denied := nodetest.Holder(6, 0, "denied")
	denied.Namespace = "guest"
	runtime := critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"}, append(running, denied)...)
	var says golden.Cases
	says.Add(t, "two pods of CRI-O", repaired(t, runtime.Socket, processes, false, "ml/low-child", "ml/unrelated"))
	says.Add(t, "a pod that is not there", repaired(t, runtime.Socket, processes, false, "ml/elsewhere"))
	if processes.Soft(nodetest.ContainerID(1))[0] != nodetest.EightMiB {
		t.Error("another pod was raised")
	}
	var out, notes bytes.Buffer
	o := repair.Options{Options: node.Options{Config: clitest.File(t,
		"rules: [{match: {namespaces: [guest]}, memlock: memory-limit}]"), Root: hcatest.V100(t), Endpoint: runtime.Socket,
		Processes: limits.On(processes), Pods: []string{"guest/denied"}}, Format: cli.FormatText}
	err := o.Repair(t.Context(), &out, &notes)
	says.Add(t, "a pod that would be refused", fmt.Sprint(out.String(), withoutSources(notes.String()), err))
	says.Compare(t, "testdata/named.txt")
}

// TestRepairLoop: each pass raises what is low by then, and says what the pass before did not: nothing where nothing is
// low.
func TestRepairLoop(t *testing.T) {
	processes, running := nodetest.Low()
	runtime, _ := containerdWith(t, running)
	address := loopback.Address()
	o := repair.Options{Options: node.Options{Config: clitest.File(t, "{}"), Root: hcatest.V100(t), Endpoint: runtime.Socket,
		Processes: limits.On(processes), Pods: []string{"ml/low"}}, Format: cli.FormatText, Every: 10 * time.Millisecond,
		Address: address}
	var out, notes output.Buffer
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Loop(ctx, &out, &notes) }()
	raised := func(times int) func() bool {
		return func() bool { return strings.Count(out.String(), "ml/low main: memlock raised to unlimited") == times }
	}
	await.That(t, await.Timeout, "raised", raised(1))
	await.That(t, await.Timeout, "metrics of a pass in which nothing is low", func() bool {
		answer, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return false
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it was read whole
		return err == nil && strings.Contains(string(text), "rdma_spec_repair_containers{memlock=\"below\"} 0\n") &&
			strings.Contains(string(text), "rdma_spec_repair_total{result=\"raised\"} 1\n")
	})
	processes.Run(nodetest.ContainerID(1), nodetest.EightMiB) // as a container that was restarted without the plugin
	await.That(t, await.Timeout, "raised again", raised(2))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := out.String() + notes.String(); strings.Contains(text, "nothing to raise") ||
		strings.Count(text, "rdma-spec: policy: ") != 1 {
		t.Errorf("it says:\n%s", text)
	}
}

// TestRepairLoopFlags: flags that do not fit together are a wrong call.
func TestRepairLoopFlags(t *testing.T) {
	for _, args := range [][]string{{"--every", "10ms"}, {"--every", "0s"}, {"--every", "25h"}, {"--http", ":1"},
		{"--every", "1m", "-o", "json"}} {
		if got := program.Call("", append([]string{"repair"}, args...)...); got.Status != 2 {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestRepairFailures(t *testing.T) {
	var says golden.Cases
	processes, running := nodetest.Low()
	// What repair cannot look at, it names: a VM has no process on the node, and its spec sets no limit.
	vm := critest.Serve(t, critest.Options{}, nodetest.Holder(2, 0, "good"), nodetest.Holder(7, 0, "vm"))
	says.Add(t, "a VM", repaired(t, vm.Socket, processes, false))
	runtime, stored := containerdWith(t, running)
	processes.Refuse = errors.New("setting RLIMIT_MEMLOCK of process 7: this change needs CAP_SYS_RESOURCE")
	says.Add(t, "no capability", repaired(t, runtime.Socket, processes, false, "ml/low"))
	processes.Refuse = nil
	stored.BeforeUpdate = func(string, int) error { return errors.New("disk full") }
	says.Add(t, "no stored spec", repaired(t, runtime.Socket, processes, false, "ml/low"))
	processes.Hidden = true
	if _, _, err := repairRun(t, runtime.Socket, processes, false); !errors.Is(err, limits.ErrHidden) {
		t.Errorf("hidden processes: %v", err)
	}
	says.Compare(t, "testdata/failures.txt")
}

// pausing is a kernel where something happens in each pause.
type pausing struct {
	*limitstest.Kernel
	pauses func()
}

func (p pausing) Pause(context.Context, time.Duration) { p.pauses() }

// A process that an exec just brought has the runtime's limit for a moment: what is low counts only on the second look.
func TestRepair_looksTwice(t *testing.T) {
	processes := limitstest.NewKernel(map[string][]spec.Limit{nodetest.ContainerID(1): {spec.Unlimited,
		nodetest.EightMiB, nodetest.EightMiB, nodetest.EightMiB}})
	kernel := pausing{processes, func() {
		processes.Table[1001].Limit.Soft = spec.Unlimited                                         // it got its limits
		delete(processes.Table, 1002)                                                             // it has ended
		processes.Table[1003].Container = nodetest.ContainerID(2)                                 // another container's process has its ID
		processes.Table[1004] = limitstest.NewProcess(nodetest.ContainerID(1), nodetest.EightMiB) // the next exec's
	}}
	runtime := critest.Serve(t, critest.Options{}, nodetest.Holder(1, 0, "probed"))
	stdout, stderr, err := repairRun(t, runtime.Socket, kernel, true)
	if err != nil || stdout != "nothing to raise: checked 1 RDMA container\n" || stderr != "" {
		t.Errorf("%v, %q, %q", err, stdout, stderr)
	}
}
