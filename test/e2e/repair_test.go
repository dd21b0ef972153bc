// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

//go:embed testdata/register.c
var registerSource string

// register builds a program that tries to register 10 MB until it succeeds.
func register(t *testing.T) containerd.Mount {
	t.Helper()
	dir := scratch.Dir(t)
	source, program := filepath.Join(dir, "register.c"), filepath.Join(dir, "register")
	scratch.File(t, source, registerSource, 0o644)
	if out, err := exec.CommandContext(t.Context(), "cc", "-O1", "-o", program, source,
		"-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	return containerd.Mount{Host: program, Container: "/register"}
}

// tool is like call, for a node without a running plugin.
func tool(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return call(t, judged(t, args)...)
}

// judged adds the default policy to the arguments of status and repair, because a policy must be given if no plugin
// runs.
func judged(t *testing.T, args []string) []string {
	t.Helper()
	if args[0] != "status" && args[0] != "repair" {
		return args
	}
	defaults := filepath.Join(scratch.Dir(t), "defaults.yaml")
	scratch.File(t, defaults, "{}", 0o644)
	return append(args, "--config", defaults)
}

// call runs rdma-spec and returns its output and its exit status.
func call(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(*bin, "rdma-spec"), args...)
	var out, notes bytes.Buffer
	command.Stdout, command.Stderr = &out, &notes
	var exit *exec.ExitError
	if err := command.Run(); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return out.String(), notes.String(), status
}

// expectCall runs rdma-spec, and checks its exit status and that its standard output contains the texts. expectTool
// does the same for one text on a node without a running plugin.
func expectCall(t *testing.T, status int, texts []string, args ...string) {
	t.Helper()
	stdout, stderr, got := call(t, args...)
	missing := slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(stdout, text) })
	if got != status || len(missing) > 0 {
		t.Errorf("rdma-spec %s: exit status %d, want %d, and %q in\n%s%s", strings.Join(args, " "), got, status, missing,
			stdout, stderr)
	}
}

func expectTool(t *testing.T, status int, text string, args ...string) {
	t.Helper()
	expectCall(t, status, []string{text}, judged(t, args)...)
}

// awaitResult waits until the program that register built has printed a text in a container.
func awaitResult(t *testing.T, id, want string) {
	t.Helper()
	await.That(t, patience, "said by /register: "+want, func() bool { return shell(t, id, "cat /result") == want })
}

// A program cannot register its memory, because its container was created without the plugin. After a repair, the same
// process can, without a restart.
func TestRepair(t *testing.T) {
	pod := runPod(t, containerd.Pod{Name: "broken"})
	id := runContainer(t, pod, containerd.Container{
		Name: "main", Devices: containerd.Verbs(0), Mounts: []containerd.Mount{register(t),
			{Host: filepath.Join(*bin, "rdma-spec"), Container: "/rdma-spec"}},
		Args: []string{"/register", "rxe0", "/result"},
	})
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	awaitResult(t, id, "1 refused: Cannot allocate memory")
	expectMemlock(t, id, kernelDefault)
	before := pid(t, id)
	// Add a process in its own user namespace.
	shell(t, id, `/usr/bin/unshare --user sleep 1000 >/dev/null 2>&1 &
		while [ "$(readlink /proc/$!/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.1; done`)

	expectTool(t, 1, "  below  memlock is 8Mi, but the policy grants unlimited (fix: rdma-spec repair --config ", "status")
	expectVerifyIn(t, id, "/rdma-spec", 1, "FAIL  register 64Mi with rxe0: REG_MR: cannot allocate memory, because memlock is 8Mi")
	expectTool(t, 1, "default/broken main: memlock would be raised to unlimited: 2 processes and the stored spec\n",
		"repair", "--dry-run")
	expectMemlock(t, id, kernelDefault)
	expectTool(t, 0, "default/broken main: memlock raised to unlimited: 2 processes and the stored spec\n",
		"repair", "default/broken")

	awaitResult(t, id, "1 refused: Cannot allocate memory\n1 registered")
	if after := pid(t, id); after != before {
		t.Errorf("the program had PID %d and has %d", before, after)
	}
	expectMemlock(t, id, "unlimited")
	expectMemlock(t, unrelated, kernelDefault)
	if left := leftLow(members(t, id)); len(left) > 0 {
		t.Errorf("processes are left low: %v", left)
	}
	if got := shell(t, id, "ulimit -l; ulimit -Hl"); got != "unlimited\nunlimited" {
		t.Errorf("in an exec, ulimit -l says %q, want unlimited, soft and hard", got)
	}
	expectVerifyIn(t, id, "/rdma-spec", 0, "ok    register 64Mi with rxe0: done")
	expectTool(t, 0, "unlimited  no        rxe0  ", "status")
	expectTool(t, 0, "nothing to raise: checked 1 RDMA container\n", "repair")
}

// When the plugin registers, it counts the containers that were created without it, and logs their number and the
// command to list them. repair --every raises them, and logs that once.
func TestRepairLoop(t *testing.T) {
	pod := runPod(t, containerd.Pod{Name: "earlier"})
	id := runContainer(t, pod, containerd.Container{Name: "main", Devices: containerd.Verbs(0),
		Mounts: []containerd.Mount{register(t)}, Args: []string{"/register", "rxe0", "/result"}})
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	awaitResult(t, id, "1 refused: Cannot allocate memory")

	plugin := startPlugin(t, "{}", "--http", metricsAddress)
	awaitLog(t, plugin, "(default/earlier container main) have a lower memlock than the current policy grants, because they were created without this plugin or under another policy: to raise their memlock, run rdma-spec repair")
	expectMetric(t, "nri_rdma_registered_below_policy 1")
	expectMemlock(t, id, kernelDefault)

	loop := startRepair(t)
	began := time.Now()
	awaitLog(t, loop, "default/earlier main: memlock raised to unlimited")
	t.Logf("raised within %s", time.Since(began).Round(time.Millisecond))
	awaitResult(t, id, "1 refused: Cannot allocate memory\n1 registered")
	if got := shell(t, id, "ulimit -l"); got != "unlimited" {
		t.Errorf("in an exec, ulimit -l says %q", got)
	}
	expectMemlock(t, unrelated, kernelDefault)
}

// members returns the processes of a container.
func members(t *testing.T, id string) []int {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), id) {
			continue // it has ended, or belongs to another container
		}
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}

// leftLow returns the processes whose memlock is not unlimited.
func leftLow(pids []int) (left []int) {
	for _, pid := range pids {
		if limit, err := softMemlock(pid); err == nil && limit != "unlimited" {
			left = append(left, pid)
		}
	}
	return left
}
