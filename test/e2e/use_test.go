// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// used describes how a container or a process uses RDMA, as status reports it.
type used struct {
	Namespace, Pod, Container, Signal, State string
	Memlock                                  struct{ Soft string }
	IPCLock                                  bool
	PID                                      int
	HCAs                                     []string
	Problems, Notes                          []string
	Use                                      struct {
		Summary                 string
		HCAs                    []string
		Contexts, MemoryRegions *int
		RegisteredBytes         *uint64
		PinnedBytes             *uint64
		QueuePairs              map[string]int
	}
}

// statusOf runs status, and returns who uses RDMA, and the exit status.
func statusOf(t *testing.T, args ...string) ([]used, int) {
	t.Helper()
	stdout, stderr, status := call(t, append([]string{"status", "-o", "json"}, args...)...)
	var result struct{ Containers, Outside []used }
	if err := json.Unmarshal([]byte(stdout), &result); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	return append(result.Containers, result.Outside...), status
}

// uses returns who uses RDMA, by the names of containers and processes.
func uses(t *testing.T, args ...string) map[string]used {
	t.Helper()
	all, _ := statusOf(t, args...)
	by := map[string]used{}
	for _, u := range all {
		by[u.Container] = u
	}
	return by
}

// says reports whether one of the texts about the container contains these words.
func (u used) says(words string) bool {
	return strings.Contains(strings.Join(append(u.Problems, u.Notes...), "\n"), words)
}

// registered returns the number of registered bytes, or says that it is unknown.
func (u used) registered() string {
	if u.Use.RegisteredBytes == nil {
		return "unknown"
	}
	return fmt.Sprint(*u.Use.RegisteredBytes)
}

const (
	waiting   = "/usr/bin/ibv_rc_pingpong -d rxe%d -g 1 -s %d -p %d" // it registers its memory, and waits for a client
	overTCP   = "the program might be using TCP"
	bandwidth = "ib_write_bw -d rxe0 -x 1 -s 4M -q 4 -F --run_infinitely -p 18750"
)

// status lists who uses RDMA, and how much memory each user has registered with which HCA: RDMA containers, and users
// outside the policy. It also lists an RDMA container that uses nothing, but no unrelated container.
func TestUse(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Privileged: true, Annotations: map[string]string{
		"rdma.noderesource.dev/container.mounted": "false"}})
	run := func(name string, ctr containerd.Container, command string) string {
		if ctr.Name = name; command != "" {
			ctr.Args = []string{"/bin/busybox", "sh", "-c", "exec " + command}
		}
		return runContainer(t, pod, ctr)
	}
	run("waits", containerd.Container{Devices: containerd.Verbs(1)}, fmt.Sprintf(waiting, 1, 10_000_000, 18751))
	run("privileged", containerd.Container{Privileged: true}, fmt.Sprintf(waiting, 0, 10_000_000, 18752))
	run("mounted", containerd.Container{Devices: containerd.Verbs(0), Mounts: []containerd.Mount{
		{Host: "/dev/infiniband", Container: "/dev/infiniband"}}}, fmt.Sprintf(waiting, 0, 1_000_000, 18753))
	run("idle", containerd.Container{Devices: containerd.Verbs(0)}, "")
	run("registers", withLocker(containerd.Container{Devices: containerd.Verbs(0)}), "/opt/locker register 1048576")
	run("unrelated", containerd.Container{}, "")
	command := strings.Fields(fmt.Sprintf(waiting, 0, 10_000_000, 18754))
	process := start(t, command[0], command[1:]...)

	want := map[string]string{"waits": "10000000 on rxe1", "privileged": "10000000 on rxe0", "mounted": "1000000 on rxe0",
		"idle": "0 on ", "registers": "1048576 on rxe0", "ibv_rc_pingpong": "10000000 on rxe0"}
	var by map[string]used
	await.Success(t, patience, "all who use RDMA have registered their memory", func() error {
		by = uses(t)
		got := map[string]string{}
		for name, u := range by {
			got[name] = u.registered() + " on " + strings.Join(u.Use.HCAs, ",")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	for name, u := range by {
		if outside := name == "privileged" || name == "mounted" || name == "ibv_rc_pingpong"; (u.State == "outside") != outside ||
			u.says(overTCP) != (name == "idle") || u.Use.QueuePairs != nil || u.Use.PinnedBytes == nil {
			t.Errorf("%s: %+v", name, u)
		}
	}
	for name, words := range map[string]string{
		"idle":            "the container has rxe0, but has not registered memory since it started ",
		"privileged":      "the container is privileged, and uses rxe0: with the plugin, the container need not be privileged: request an RDMA resource",
		"mounted":         "the container mounts /dev/infiniband from the node, and uses rxe0: with the plugin, the container needs no hostPath volume: ",
		"ibv_rc_pingpong": "a process on the node, outside containers, uses rxe0;",
	} {
		if u := by[name]; !u.says(words) {
			t.Errorf("%s does not say %q: %+v", name, words, u)
		}
	}
	if u := by["ibv_rc_pingpong"]; u.PID != process.PID() || *u.Use.PinnedBytes < 10_000_000 {
		t.Errorf("the process %d: %+v", process.PID(), u)
	}
	outside := uses(t, "--outside")
	if len(outside) != 3 {
		t.Errorf("outside the policy: %+v", outside)
	}
	expectUseInArchive(t)
	// In its own PID namespace, as in a pod without hostPID, a process cannot find out who owns the objects.
	hidden, err := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", filepath.Join(*bin, "rdma-spec"), "status",
		"--outside").CombinedOutput()
	if !strings.Contains(string(hidden), "in a pod with hostPID: true: for the DaemonSet's pods, set hostPID: true in "+
		"the chart's values") {
		t.Errorf("in another PID namespace: %v: %s", err, hidden)
	}
	process.Stop()
	if outside := uses(t, "--outside"); len(outside) != 2 {
		t.Errorf("outside the policy, after a process has ended: %+v", outside)
	}

	expectQueuePairs(t, run)
}

// expectUseInArchive checks that status prints the same table for a support bundle as for the node.
func expectUseInArchive(t *testing.T) {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "node.tar.gz")
	if _, stderr, status := tool(t, "collect", "--to", file, "--timeout=1m"); status != 0 {
		t.Fatalf("collect: exit status %d: %s", status, stderr)
	}
	there, _, _ := tool(t, "status")
	here, _, _ := tool(t, "status", "--root", file)
	since := regexp.MustCompile(`since it started \S+ ago`)
	if diff := cmp.Diff(since.ReplaceAllString(there, ""), since.ReplaceAllString(here, "")); diff != "" ||
		!strings.Contains(there, " 9.5 MiB on rxe1 ") {
		t.Errorf("status (-there +here):\n%s\n%s", diff, there)
	}
	t.Logf("status:\n%s", there)
}

// expectQueuePairs has one container write into the memory of another one over four queue pairs, and one whose queue
// pair fails. status counts the queue pairs only if --queue-pairs is set.
func expectQueuePairs(t *testing.T, run func(name string, ctr containerd.Container, command string) string) {
	t.Helper()
	run("server", containerd.Container{Devices: containerd.Verbs(0)}, bandwidth)
	run("client", containerd.Container{Devices: containerd.Verbs(0)},
		"sh -c 'until "+bandwidth+" 127.0.0.1; do sleep 0.2; done'")
	run("fails", withLocker(containerd.Container{Devices: containerd.Verbs(0)}), "/opt/locker fail 1048576")
	both := func(args ...string) (server, client, fails used) {
		by := uses(t, args...)
		return by["server"], by["client"], by["fails"]
	}
	await.Success(t, patience, "four queue pairs of each, and one that has failed", func() error {
		s, c, f := both("--queue-pairs") // the server sends nothing, so its queue pairs do not reach the state RTS
		if !maps.Equal(f.Use.QueuePairs, map[string]int{"ERR": 1}) || !f.says("1 queue pair has failed (ERR): see the container's log") {
			return fmt.Errorf("the container whose queue pair fails: %+v", f)
		}
		if !maps.Equal(s.Use.QueuePairs, map[string]int{"RTR": 4}) || !maps.Equal(c.Use.QueuePairs, map[string]int{"RTS": 4}) {
			return fmt.Errorf("server %v, client %v", s.Use.QueuePairs, c.Use.QueuePairs)
		}
		return nil
	})
	s, c, _ := both() // twice 4 MiB for each queue pair
	if s.registered() != "33554432" || c.registered() != "33554432" || s.Use.QueuePairs != nil {
		t.Errorf("server %+v, client %+v", s, c)
	}
}
