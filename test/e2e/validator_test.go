// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// While no plugin is registered, the validator refuses RDMA containers and no others, and what the plugin has adjusted
// goes past it. A runtime that asks no validators is reported, and nothing changes under it.
func TestValidator(t *testing.T) {
	if strings.HasPrefix(*version, "1.") {
		validator := startValidator(t)
		if err := validator.AwaitLog(within(t, patience), "not registered: containerd v"+*version+
			" does not ask NRI plugins to validate containers: upgrade to 2.2.0 or later"); err != nil {
			t.Error(err)
		}
		runContainer(t, runPod(t, containerd.Pod{}), containerd.Container{Devices: containerd.Verbs(0)})
		return
	}
	validator := startPlugin(t, "{}", "--validate")
	pod := runPod(t, containerd.Pod{Name: "validated"})
	_, err := pod.Run(within(t, patience), containerd.Container{Name: "refused", Devices: containerd.Verbs(0)})
	const want = "rdma-validator: pod default/validated, container refused: the RDMA container (device: " +
		"/dev/infiniband/uverbs0 (rxe0)) would start " +
		`without memlock unlimited, which rule "default" gives: see that nri-rdma is registered on this node`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without the plugin the creation gives %v, want %q", err, want)
	}
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "unrelated"}), kernelDefault)
	plugin := startPlugin(t, "{}")
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "holder", Devices: containerd.Verbs(0)}), "unlimited")
	t.Logf("of its own, beside what processes of the same program share: the plugin has %.1f MB, the validator %.1f MB",
		ownMemory(t, plugin), ownMemory(t, validator))
}

// startValidator runs nri-rdma --validate with the defaults, whether or not the runtime takes it in. It ends with the
// test.
func startValidator(t *testing.T) *daemon.Process {
	t.Helper()
	config := filepath.Join(scratch.Folder(t), "config.yaml")
	scratch.File(t, config, "{}", 0o644)
	p, err := daemon.Start(nil, filepath.Join(*bin, "nri-rdma"), "--validate", "--config", config,
		"--socket", containerd.NRISocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

var privateMemory = regexp.MustCompile(`(?m)^Private_\w+:\s+(\d+) kB$`)

// ownMemory returns the memory, in MB, that a process shares with no other.
func ownMemory(t *testing.T, p *daemon.Process) float64 {
	t.Helper()
	text := scratch.Read(t, fmt.Sprintf("/proc/%d/smaps_rollup", p.PID()))
	sum := 0
	for _, match := range privateMemory.FindAllStringSubmatch(text, -1) {
		kB, err := strconv.Atoi(match[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += kB
	}
	if sum == 0 {
		t.Fatalf("no private memory in %s", text)
	}
	return float64(sum) * 1024 / 1e6
}
