// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// child adds another process of a container to a node's files.
func child(files hcatest.Files, container, n int, memlock string) {
	addProcess(files, n, memlock, plain)
	files[fmt.Sprintf("proc/%d/cgroup", n)] = "0::/kubepods/" + containerID(container) + "\n"
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
			child(files, c.PID, c.PID+1000*i, memlock)
		}
	}
	const high, low = "unlimited unlimited", "8388608 8388608"
	enough, little := memlockOf(math.MaxUint64), memlockOf(65536)
	add(holder(1, 0, "good", enough), false, high, high)
	add(holder(2, 0, "low"), true, low)
	add(holder(3, 0, "low-child"), true, high, high, low)
	add(holder(4, 0, "low-spec", little), true, high)
	add(holder(5, 0, "spec-without"), false, high)
	add(holder(6, 0, "lowered-itself", enough), false, high, "8388608 unlimited")
	add(holder(7, 0, "lowered-for-good", enough), false, high, low)
	add(holder(8, 0, "signed", memlockOf(math.MaxInt64)), false, "9223372036854775807 9223372036854775807")
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, containers...)
	node := []string{"--config", configFile(t, "{}"), "--root", root, "--runtime-endpoint", runtime.Socket}

	stdout, _, status := runCommand(t, append([]string{"status", "-o", "json"}, node...)...)
	var seen struct {
		Containers []struct {
			Pod, State string
			Problems   []string
		}
	}
	if err := json.Unmarshal([]byte(stdout), &seen); err != nil || status != 1 {
		t.Fatalf("status: exit status %d, want 1, %v\n%s", status, err, stdout)
	}
	repair, _, status := runCommand(t, append([]string{"repair", "--dry-run"}, node...)...)
	if status != 1 {
		t.Errorf("repair --dry-run: exit status %d, want 1", status)
	}
	for _, c := range seen.Containers {
		if (c.State == "below") != below[c.Pod] || c.State != "below" && c.State != "ok" {
			t.Errorf("status: %s is %s, %v", c.Pod, c.State, c.Problems)
		}
		if raised := strings.Contains(repair, "ml/"+c.Pod+" main: memlock would be raised"); raised != below[c.Pod] {
			t.Errorf("repair --dry-run raises %s: %v", c.Pod, raised)
		}
		for _, problem := range c.Problems { // the hint can be pasted, and is about the same node and policy
			_, hint, _ := strings.Cut(problem, ": rdma-spec ")
			stdout, stderr, status := runCommand(t, append(strings.Fields(hint), "--dry-run")...)
			if status != 1 || strings.Count(stdout, "\n") != 1 || !strings.HasPrefix(stdout, "ml/"+c.Pod+" main: ") {
				t.Errorf("%s: exit status %d\n%s%s", hint, status, stdout, stderr)
			}
		}
	}
	if len(seen.Containers) != len(below) {
		t.Errorf("status has %d containers, want %d", len(seen.Containers), len(below))
	}
}

// CRI-O's specs cannot be changed: status and repair both say that the pod must be recreated.
func TestLowSpecThatCannotBeRaised(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "unlimited unlimited", plain)
	runtime := critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"},
		holder(1, 0, "low-spec", memlockOf(65536)))
	node := []string{"--config", configFile(t, "{}"), "--root", files.Root(t), "--runtime-endpoint", runtime.Socket}
	const problem = "its spec gives processes of an exec 64Ki, the policy gives unlimited: recreate the pod"
	stdout, _, status := runCommand(t, append([]string{"status"}, node...)...)
	if status != 1 || !strings.Contains(stdout, "below  "+problem) {
		t.Errorf("status: exit status %d\n%s", status, stdout)
	}
	_, stderr, status := runCommand(t, append([]string{"repair", "--dry-run"}, node...)...)
	if status != 1 || !strings.Contains(stderr, "rdma-spec: ml/low-spec main: left alone: "+problem+"\n") {
		t.Errorf("repair: exit status %d, %s", status, stderr)
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

func TestHintsCanBePasted(t *testing.T) {
	for want, o := range map[string]node.Options{
		"rdma-spec repair ml/a": {Root: "/"},
		"rdma-spec repair --config c.yaml --root /host --runtime-endpoint /s ml/a": {Config: "c.yaml",
			Root: "/host", Endpoint: "/s"},
		`rdma-spec repair --config 'my config'\''s.yaml' --root '/a;b' ml/a`: {Config: "my config's.yaml",
			Root: "/a;b"},
		"rdma-spec repair --runtime-endpoint unix:///run/containerd/c.sock_1-2 ml/a": {Root: "/",
			Endpoint: "unix:///run/containerd/c.sock_1-2"},
	} {
		if got := o.Command("repair", "ml/a"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
