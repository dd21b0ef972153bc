// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

const eightMiB = spec.Limit(8 << 20)

// lowNode is a node with containers that are below policy, one that is not, and one that is not an RDMA container.
func lowNode() (processes *limitstest.Kernel, containers []critest.Container) {
	processes = &limitstest.Kernel{Table: map[int]*limitstest.Process{}}
	for n, soft := range map[int][]spec.Limit{
		1: {eightMiB, eightMiB, spec.Unlimited}, 2: {spec.Unlimited}, 3: {eightMiB},
		4: {spec.Unlimited, eightMiB}, 5: {spec.Unlimited},
	} {
		for i, limit := range soft { // the first has the number of its container
			processes.Table[n+100*i] = limitstest.NewProcess(containerID(n), limit)
		}
	}
	return processes, []critest.Container{
		holder(1, 0, "low"), holder(2, 0, "good"), other(3, "unrelated"), holder(4, 1, "low-child"),
		holder(5, 1, "low-spec", memlockOf(65536)),
	}
}

// repairRun is a call of `rdma-spec repair` on a node in memory.
func repairRun(t *testing.T, endpoint string, on limits.Kernel, dryRun bool, pods ...string) (stdout,
	stderr string, err error) {
	t.Helper()
	var out, notes bytes.Buffer
	o := repair.Options{Options: node.Options{Config: configFile(t, "{}"), Root: hcatest.V100(t), Endpoint: endpoint,
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

func expectTexts(t *testing.T, what, stdout, stderr, wantOut, wantErr string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(wantOut, "\n"), stdout); diff != "" {
		t.Errorf("%s: stdout (-want +got):\n%s", what, diff)
	}
	if diff := cmp.Diff(strings.TrimPrefix(wantErr, "\n"), stderr); diff != "" {
		t.Errorf("%s: stderr (-want +got):\n%s", what, diff)
	}
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
	processes, running := lowNode()
	runtime, stored := containerdWith(t, running)

	stdout, stderr, err := repairRun(t, runtime.Socket, processes, true)
	expectTexts(t, "dry run", stdout, stderr, `
ml/low main: memlock would be raised to unlimited: 2 processes and the stored spec
ml/low-child main: memlock would be raised to unlimited: 1 process and the stored spec
ml/low-spec main: memlock would be raised to unlimited: 0 processes and the stored spec
`, "")
	if !errors.Is(err, cli.ErrProblemFound) {
		t.Errorf("dry run: %v", err)
	}
	if processes.Sets() != 0 || stored.Updates(containerID(1)) != 0 {
		t.Errorf("the dry run has set %d limits and written the stored spec %d times", processes.Sets(),
			stored.Updates(containerID(1)))
	}

	stdout, stderr, err = repairRun(t, runtime.Socket, processes, false)
	expectTexts(t, "repair", stdout, stderr, `
ml/low main: memlock raised to unlimited: 2 processes and the stored spec
ml/low-child main: memlock raised to unlimited: 1 process and the stored spec
ml/low-spec main: memlock raised to unlimited: 0 processes and the stored spec
`, "")
	if err != nil {
		t.Error(err)
	}
	for n, updates := range map[int]int{1: 1, 2: 0, 3: 0, 4: 1, 5: 1} {
		if got := stored.Updates(containerID(n)); got != updates {
			t.Errorf("the stored spec of container %d was written %d times, want %d", n, got, updates)
		}
	}
	for n, want := range map[int][]spec.Limit{1: {spec.Unlimited, spec.Unlimited, spec.Unlimited}, 3: {eightMiB},
		4: {spec.Unlimited, spec.Unlimited}} {
		if diff := cmp.Diff(want, processes.Soft(containerID(n))); diff != "" {
			t.Errorf("limits of container %d (-want +got):\n%s", n, diff)
		}
	}
	// The fake runtime's verbose status still has the old spec of low-spec.
	stdout, _, err = repairRun(t, runtime.Socket, processes, false, "ml/low", "ml/low-child")
	if err != nil || stdout != "nothing to raise: looked at 2 RDMA containers\n" {
		t.Errorf("again: %v, %q", err, stdout)
	}
}

func TestRepairOfNamedPods(t *testing.T) {
	processes, running := lowNode()
	denied := holder(6, 0, "denied")
	denied.Namespace = "guest"
	runtime := critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"}, append(running, denied)...)
	stdout, stderr, err := repairRun(t, runtime.Socket, processes, false, "ml/low-child", "ml/unrelated")
	expectTexts(t, "CRI-O", stdout, stderr, `
ml/low-child main: memlock raised to unlimited: 1 process
`, `
rdma-spec: ml/unrelated main is not an RDMA container
rdma-spec: ml/low-child main: cri-o stores no spec that can be changed: processes of later execs have the old limit until the pod is recreated
`)
	if err != nil || processes.Soft(containerID(1))[0] != eightMiB {
		t.Errorf("%v, or another pod was raised", err)
	}
	_, _, err = repairRun(t, runtime.Socket, processes, false, "ml/elsewhere")
	if err == nil || err.Error() != "no container of pod ml/elsewhere runs on this node" {
		t.Errorf("unknown pod: %v", err)
	}
	var out, notes bytes.Buffer
	o := repair.Options{Options: node.Options{Config: configFile(t,
		"rules: [{match: {namespaces: [guest]}, memlock: memory-limit}]"), Root: hcatest.V100(t), Endpoint: runtime.Socket,
		Processes: limits.On(processes), Pods: []string{"guest/denied"}}, Format: cli.FormatText}
	err = o.Repair(t.Context(), &out, &notes)
	expectTexts(t, "denied", out.String(), withoutSources(notes.String()),
		"nothing to raise: looked at 0 RDMA containers\n", `
rdma-spec: guest/denied main: left alone: a new container would be refused: memlock is the container's memory limit (rule "rules[0]"), and it has none: set resources.limits.memory
`)
	if err != nil {
		t.Error(err)
	}
}

// What repair cannot look at, it names: a VM has no process on the node, and its spec sets no limit.
func TestRepairOfWhatCannotBeSeen(t *testing.T) {
	processes, _ := lowNode()
	runtime := critest.Serve(t, critest.Options{}, holder(2, 0, "good"), holder(7, 0, "vm"))
	stdout, stderr, err := repairRun(t, runtime.Socket, processes, false)
	expectTexts(t, "a VM", stdout, stderr, "nothing to raise: looked at 1 RDMA container\n", `
rdma-spec: ml/vm main: left alone: its memlock is unknown
`)
	if err == nil || err.Error() != "cannot look at 1 container" {
		t.Error(err)
	}
}

func TestRepairFailures(t *testing.T) {
	processes, running := lowNode()
	runtime, stored := containerdWith(t, running)
	processes.Refuse = errors.New("setting RLIMIT_MEMLOCK of process 7: this needs the capability SYS_RESOURCE")
	stdout, stderr, err := repairRun(t, runtime.Socket, processes, false, "ml/low")
	expectTexts(t, "no capability", stdout, stderr, "", `
rdma-spec: ml/low main: setting RLIMIT_MEMLOCK of process 7: this needs the capability SYS_RESOURCE
`)
	if !errors.Is(err, cli.ErrProblemFound) {
		t.Errorf("no capability: %v", err)
	}
	processes.Refuse = nil
	stored.BeforeUpdate = func(string, int) error { return errors.New("disk full") }
	stdout, stderr, err = repairRun(t, runtime.Socket, processes, false, "ml/low")
	if !errors.Is(err, cli.ErrProblemFound) || stdout != "ml/low main: memlock raised to unlimited: 2 processes\n" ||
		!strings.HasPrefix(stderr,
			"rdma-spec: ml/low main: processes of later execs have the old limit: stored spec of container ") {
		t.Errorf("stored spec: %v, stdout %q, stderr %q", err, stdout, stderr)
	}
	processes.Hidden = true
	if _, _, err := repairRun(t, runtime.Socket, processes, false); !errors.Is(err, limits.ErrHidden) {
		t.Errorf("hidden processes: %v", err)
	}
}

func TestRepairCalledWrongly(t *testing.T) {
	for _, name := range []string{"train-0", "ml/", "/train-0", "ml/train/0", "ML/train", "ml/train 0"} {
		if got := call("", "repair", name); got.Status != 2 || !strings.Contains(got.Stderr, "write NAMESPACE/POD") {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

// pausing is a kernel where something happens in each pause.
type pausing struct {
	*limitstest.Kernel
	pauses func()
}

func (p pausing) Pause(context.Context, time.Duration) { p.pauses() }

// A process that an exec just brought has the runtime's limit for a moment: what is low counts only on the second look.
func TestSecondLook(t *testing.T) {
	processes := limitstest.NewKernel(map[string][]spec.Limit{containerID(1): {spec.Unlimited,
		eightMiB, eightMiB, eightMiB}})
	kernel := pausing{processes, func() {
		processes.Table[1001].Limit.Soft = spec.Unlimited                       // it got its limits
		delete(processes.Table, 1002)                                           // it has ended
		processes.Table[1003].Container = containerID(2)                        // another container's process has its ID
		processes.Table[1004] = limitstest.NewProcess(containerID(1), eightMiB) // the next exec's
	}}
	runtime := critest.Serve(t, critest.Options{}, holder(1, 0, "probed"))
	stdout, stderr, err := repairRun(t, runtime.Socket, kernel, true)
	if err != nil || stdout != "nothing to raise: looked at 1 RDMA container\n" || stderr != "" {
		t.Errorf("%v, %q, %q", err, stdout, stderr)
	}
}
