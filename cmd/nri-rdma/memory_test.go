// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// After the program registers with a runtime that has 150 containers with 0.9 MB of environment each, and pods with
// 100 KB of annotations, the program has never needed more than 64 MB. If the program kept the containers, it would need
// at least 150 MB. NRI sends at least four of each in a message of 4 MiB, so larger ones cannot be sent.
func TestServe_memoryAtRegistration(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own memory")
	}
	const containers, most = 150, 64 << 20
	environment := make([]string, 900)
	for i := range environment {
		environment[i] = fmt.Sprintf("VARIABLE_%d=%s", i, strings.Repeat("x", 1000))
	}
	var existing []*api.Container
	for i := range containers {
		id := fmt.Sprintf("%064x", i)
		existing = append(existing, &api.Container{Id: id, PodSandboxId: "pod-" + id, Name: "main", Env: environment})
	}
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting(existing)
	runtime.Annotate(map[string]string{"example.com/notes": strings.Repeat("x", 100<<10)})
	runtime.Start(t)
	cmd := program(t, "as it is", "--socket", runtime.Socket, "--root", hcatest.V100(t))
	must.Succeed(t, child.Start(cmd))
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	await.That(t, await.Timeout, "registered", func() bool { return runtime.Synchronised() == 1 })
	status := scratch.Read(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	_, peak, _ := strings.Cut(status, "\nVmHWM:")
	var needed int
	if _, err := fmt.Sscan(peak, &needed); err != nil {
		t.Fatal(err)
	}
	if needed <<= 10; needed > most {
		t.Errorf("it needed %d MB, want %d at most", needed>>20, most>>20)
	}
	t.Logf("%d MB", needed>>20)
}
