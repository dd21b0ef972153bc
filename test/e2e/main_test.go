// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

// Package e2e tests the plugin and rdma-spec on a real RDMA node, with a real containerd. Its tests run on the node:
// `make e2e` builds them, boots a node, and runs them there.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/crio"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var (
	version = flag.String("containerd", "2.4.2", "the containerd to test with; empty for none but the tests' own")
	runtime = flag.String("runtime", "runc", "the OCI runtime to test with")
	bin     = flag.String("bin", "bin", "directory of nri-rdma and rdma-spec")

	// ctrd is the containerd that the tests share; nil if each test has its own.
	ctrd *containerd.Containerd
	// crioInstead is the CRI-O that TestCRIO runs instead of containerd; nil in other tests.
	crioInstead *crio.CRIO
)

// patience is how long a test waits for something that should happen soon. It is long because the node's CPU is
// emulated.
const patience = 2 * time.Minute

// budget is how long a creation may wait for containerd. The default is too short for an emulated CPU.
const budget = "1500ms"

func TestMain(m *testing.M) {
	flag.Parse()
	if resource := os.Getenv(asDevicePlugin); resource != "" {
		os.Exit(offer(resource))
	}
	parts.Choose()
	os.Exit(testNode(m))
}

func testNode(m *testing.M) int {
	if os.Getenv("RDMA_NODE") == "" {
		fmt.Fprintln(os.Stderr, "e2e: these tests run inside the RDMA node: call `make e2e`")
		return 2
	}
	var err error
	if *bin, err = filepath.Abs(*bin); err == nil && *version != "" {
		ctrd, err = containerd.Start(context.Background(), options())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() {
		if ctrd != nil {
			ctrd.Stop()
		}
	}()
	return m.Run()
}

// options returns the options of the shared containerd. It waits longer than by default for a plugin's answer: on a
// busy host, the node's CPU stops now and then, and a plugin that containerd drops would miss the containers that are
// created before it is back.
func options() containerd.Options {
	return containerd.Options{Version: *version, Runtime: *runtime, RequestTimeout: "10s"}
}

// onRuntime returns a client of the runtime on which the tests' pods run.
func onRuntime() *pods.Client {
	if crioInstead != nil {
		return crioInstead.Client
	}
	return ctrd.Client
}

// startPlugin runs nri-rdma with a configuration, and waits until it is registered. It ends with the test.
func startPlugin(t *testing.T, config string, args ...string) *daemon.Process {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, file, config, 0o644)
	return startPluginWith(t, append([]string{"--config", file}, args...)...)
}

// startPluginWith is like startPlugin, with arguments but without a configuration.
func startPluginWith(t *testing.T, args ...string) *daemon.Process {
	t.Helper()
	args = append([]string{"--socket", containerd.NRISocket, "--budget", budget}, args...)
	p := start(t, filepath.Join(*bin, "nri-rdma"), args...)
	awaitLog(t, p, "msg=registered")
	return p
}

// start runs a program that ends with the test.
func start(t *testing.T, program string, args ...string) *daemon.Process {
	t.Helper()
	p, err := daemon.Start(nil, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", program, p.Log())
		}
	})
	return p
}

// awaitThat waits until a condition is true that a program, a runtime, a kubelet, or a cluster causes.
func awaitThat(t *testing.T, who interface {
	Await(ctx context.Context, what string, condition func() bool) error
}, d time.Duration, what string, condition func() bool) {
	t.Helper()
	if err := who.Await(within(t, d), what, condition); err != nil {
		t.Fatal(err)
	}
}

// signal sends a signal to a program, or to a runtime.
func signal(t *testing.T, to interface{ Signal(s syscall.Signal) error }, s syscall.Signal) {
	t.Helper()
	if err := to.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// awaitLog waits until a program's log contains a text.
func awaitLog(t *testing.T, p *daemon.Process, text string) {
	t.Helper()
	if err := p.AwaitLog(within(t, patience), text); err != nil {
		t.Fatal(err)
	}
}

// expectLogged checks that a program's log contains texts.
func expectLogged(t *testing.T, p *daemon.Process, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.Log(), text) {
			t.Errorf("the log does not say %q", text)
		}
	}
}

// nodeParts returns the parts with which the node was built.
func nodeParts(t *testing.T) node.PartSet {
	t.Helper()
	parts, err := node.Parts()
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// awaitRegistrations waits until a plugin has been registered this many times.
func awaitRegistrations(t *testing.T, plugin *daemon.Process, times int) {
	t.Helper()
	awaitThat(t, plugin, patience, "is registered again",
		func() bool { return strings.Count(plugin.Log(), "msg=registered") >= times })
}

// within returns a context that ends after this time, or with the test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// finally calls a function when the test ends. The function gets a new context, because the test's own context has
// ended.
func finally(t *testing.T, d time.Duration, do func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		if err := do(ctx); err != nil {
			t.Error(err)
		}
	})
}

// runPod creates a pod, which is removed when the test ends.
func runPod(t *testing.T, pod containerd.Pod) *containerd.Sandbox {
	t.Helper()
	s, err := onRuntime().RunPod(within(t, patience), pod)
	if err != nil {
		t.Fatal(err)
	}
	finally(t, kubeletPatience, s.Remove)
	return s
}

// runContainer starts a container in a pod. Like the kubelet, it retries if the plugin refuses the container because an
// HCA has not responded yet. On a slow node, this can take seconds.
func runContainer(t *testing.T, s *containerd.Sandbox, ctr containerd.Container) string {
	t.Helper()
	ctx := within(t, patience)
	for {
		id, err := s.Run(ctx, ctr)
		if err == nil {
			return id
		}
		if !strings.Contains(err.Error(), "the HCA has not responded yet") {
			t.Fatal(err)
		}
	}
}

// expectRefused checks that a container cannot be created in a pod, and what the error says.
func expectRefused(t *testing.T, s *containerd.Sandbox, ctr containerd.Container, says string) {
	t.Helper()
	if _, err := s.Run(within(t, patience), ctr); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("container %s: %v, want %q", ctr.Name, err, says)
	}
}

// shell runs a script in a container and returns its output.
func shell(t *testing.T, id, script string) string {
	t.Helper()
	result, err := onRuntime().Shell(within(t, 2*patience), id, script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(result.Out)
}

// pid returns the PID of a container's first process. Read the process's state on the node, because starting another
// process in the container takes seconds on an emulated CPU.
func pid(t *testing.T, id string) int {
	t.Helper()
	n, err := onRuntime().PID(within(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// memlock returns the soft RLIMIT_MEMLOCK of a container's first process in the kernel's format.
func memlock(t *testing.T, id string) string {
	t.Helper()
	limit, err := softMemlock(pid(t, id))
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// devices returns the device files in /dev/infiniband that a container's first process sees, separated by spaces.
func devices(t *testing.T, id string) string {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/dev/infiniband", pid(t, id)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func expectDevices(t *testing.T, id string, want ...string) {
	t.Helper()
	if got := devices(t, id); got != strings.Join(want, " ") {
		t.Errorf("the container holds %q, want %q", got, want)
	}
}

// onNode runs a command on the node, and onNodeAfter runs one when a test ends.
func onNode(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func onNodeAfter(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
}

// softMemlock returns the soft RLIMIT_MEMLOCK of a process in the kernel's format.
func softMemlock(pid int) (string, error) {
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(limits)) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "Max locked memory") && len(fields) > 3 {
			return fields[3], nil
		}
	}
	return "", fmt.Errorf("limits of process %d: %q", pid, limits)
}

// kernelDefault is the kernel's default RLIMIT_MEMLOCK: 8 MiB.
const kernelDefault = "8388608"

func expectMemlock(t *testing.T, id, want string) {
	t.Helper()
	if got := memlock(t, id); got != want {
		t.Errorf("RLIMIT_MEMLOCK of the container is %s, want %s", got, want)
	}
}

// storedSpec returns the spec that containerd stores for a container.
func storedSpec(t *testing.T, id string) []byte {
	t.Helper()
	c, err := ctrd.Stored(within(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	return c.GetSpec().GetValue()
}

// rdmaSpec runs rdma-spec, which must succeed, and returns its output.
func rdmaSpec(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(*bin, "rdma-spec"), args...).Output()
	if err != nil {
		t.Fatalf("rdma-spec %s: %v", strings.Join(args, " "), err)
	}
	return out
}
