// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

// Package e2e tests the plugin and the tool on a real RDMA node, against a real containerd. Its tests run inside the
// node: `make e2e` builds them, boots a node and runs them there.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/crio"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var (
	version = flag.String("containerd", "2.4.2", "the containerd to test with; empty for none but the tests' own")
	runtime = flag.String("runtime", "runc", "the OCI runtime to test with")
	bin     = flag.String("bin", "bin", "folder of nri-rdma and rdma-spec")

	// ctrd is the containerd that the tests share; nil where each has its own.
	ctrd *containerd.Containerd
	// crioInstead is the CRI-O that TestCRIO runs in its place; otherwise there is none.
	crioInstead *crio.CRIO
)

// patience is how long a test waits for something that should come soon. The node's CPU is emulated.
const patience = 2 * time.Minute

// budget is how long a creation may wait for containerd. The default is for nodes whose CPU is not emulated.
const budget = "1500ms"

func TestMain(m *testing.M) {
	flag.Parse()
	if resource := os.Getenv(asDevicePlugin); resource != "" {
		os.Exit(offer(resource))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
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

// options are those of the shared containerd. It waits longer than its default for a plugin's answer: on a busy host
// the node's CPU stands still now and then, and a plugin that is dropped misses what is created before it is back.
func options() containerd.Options {
	return containerd.Options{Version: *version, Runtime: *runtime, RequestTimeout: "10s"}
}

// onRuntime returns a client of the runtime that the tests' pods run on.
func onRuntime() *pods.Client {
	if crioInstead != nil {
		return crioInstead.Client
	}
	return ctrd.Client
}

// startPlugin runs nri-rdma with a configuration and waits until the runtime has taken it in. It ends with the test.
func startPlugin(t *testing.T, config string, args ...string) *daemon.Process {
	t.Helper()
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return startPluginWith(t, append([]string{"--config", file, "--socket", containerd.NRISocket,
		"--budget", budget}, args...)...)
}

func startPluginWith(t *testing.T, args ...string) *daemon.Process {
	t.Helper()
	p, err := daemon.Start(nil, filepath.Join(*bin, "nri-rdma"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("nri-rdma said:\n%s", p.Log())
		}
	})
	if err := p.AwaitLog(within(t, patience), "msg=registered"); err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitRegistrations waits until a plugin has been registered so many times.
func awaitRegistrations(t *testing.T, plugin *daemon.Process, times int) {
	t.Helper()
	err := plugin.Await(within(t, patience), "is registered again",
		func() bool { return strings.Count(plugin.Log(), "msg=registered") >= times })
	if err != nil {
		t.Fatal(err)
	}
}

// within returns a context that ends after a while, or with the test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// runPod makes a pod that goes with the test.
func runPod(t *testing.T, pod containerd.Pod) *containerd.Sandbox {
	t.Helper()
	s, err := onRuntime().RunPod(within(t, patience), pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(context.Background()); err != nil {
			t.Errorf("cannot remove the pod: %v", err)
		}
	})
	return s
}

// runContainer starts a container in a pod.
func runContainer(t *testing.T, s *containerd.Sandbox, ctr containerd.Container) string {
	t.Helper()
	id, err := s.Run(within(t, patience), ctr)
	if err != nil {
		t.Fatal(err)
	}
	return id
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

// memlock returns the soft RLIMIT_MEMLOCK, as the kernel prints it, of a container's first process. It is read on the
// node: a process in the container takes seconds to start on an emulated CPU.
func memlock(t *testing.T, id string) string {
	t.Helper()
	pid, err := onRuntime().PID(within(t, patience), id)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := softMemlock(pid)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// softMemlock returns the soft RLIMIT_MEMLOCK of a process as the kernel prints it.
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

// kernelDefault is the RLIMIT_MEMLOCK that the kernel gives by default: 8 MiB.
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

// normalised returns a spec's JSON with what differs from one container to the next replaced, indented.
func normalised(t *testing.T, text []byte, replace ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", " "); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(replace...).Replace(out.String())
}

// rdmaSpec runs the tool.
func rdmaSpec(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(*bin, "rdma-spec"), args...).Output()
	if err != nil {
		t.Fatalf("rdma-spec %s: %v", strings.Join(args, " "), err)
	}
	return out
}
