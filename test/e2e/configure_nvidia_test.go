// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// nvidiaConfig is a configuration of NVIDIA's container runtime in legacy mode with runc, which needs no GPU.
// nvidia-container-cli would look for one, so a stub that succeeds replaces it.
const nvidiaConfig = `
[nvidia-container-cli]
path = "/opt/nvidia-container-cli"
[nvidia-container-runtime]
mode = "legacy"
runtimes = ["RUNC"]
[nvidia-container-runtime-hook]
path = "TOOLS/nvidia-container-runtime-hook"
`

// This test uses NVIDIA's container toolkit 1.20.1. Its tool writes the handler, and writes it again when the toolkit
// restarts; rdma-spec configures the same node. Its runtime adds HCAs after NRI if the environment contains
// NVIDIA_MOFED=enabled. By default, the plugin grants nothing to such a container, and status and the doctor name the
// key that must list its handler.
func testNVIDIA(t *testing.T, n *bareNode) {
	parts := nodeParts(t)
	tools := filepath.Join(parts.Dir(), "nvidia-ctk")
	n.configure(t, "2.4/default")
	scratch.File(t, "/opt/nvidia-container-cli", "#!/bin/sh\n", 0o755)
	scratch.File(t, "/etc/nvidia-container-runtime/config.toml",
		strings.NewReplacer("RUNC", parts.Runtime("runc"), "TOOLS", tools).Replace(nvidiaConfig), 0o644)
	toolkitStarts := func() {
		onNode(t, tools+"/nvidia-ctk runtime configure --runtime containerd --nvidia-runtime-path "+tools+
			"/nvidia-container-runtime")
	}
	toolkitStarts()
	before := filesIn(t, "/etc/containerd")
	registered := strings.Count(readLog(pluginLog), "msg=registered")
	succeed(t, "configure", "--all")
	succeed(t, "configure", "handler", "rdma", "--like", "nvidia", "--restart")
	awaitCRI(t)
	systemd.Manage(t, "enable", "--now", "nri-rdma")
	awaitRegisteredService(t, registered+1)

	run := func(handler, name string, env map[string]string) string {
		pod := runPod(t, containerd.Pod{Name: name, Handler: handler})
		return runContainer(t, pod, containerd.Container{Env: env,
			Mounts: []containerd.Mount{{Host: filepath.Join(*bin, "rdma-spec"), Container: "/opt/rdma-spec"}}})
	}
	gpu := map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	mofed := map[string]string{"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MOFED": "enabled"}
	expect := func(id, memlock, capabilities, registers string) {
		t.Helper()
		expectMemlock(t, id, memlock)
		expectCapabilities(t, id, capabilities)
		said := shell(t, id, "/opt/rdma-spec verify 2>&1 || true")
		for _, line := range []string{"ok    /dev/infiniband/uverbs0: opened: rxe0", registers} {
			if !strings.Contains(said, "\n"+line) {
				t.Errorf("verify says no %q:\n%s", line, said)
			}
		}
	}
	expectNothing := func(id string) {
		t.Helper()
		expectMemlock(t, id, kernelDefault)
		expectCapabilities(t, id, "")
		expectDevices(t, id)
	}
	const key = `list the runtime handler "nvidia" in optIn.mofedRuntimeHandlers`

	expect(run("nvidia", "unseen", mofed), kernelDefault, "", "FAIL  register 64Mi with rxe0: REG_MR: cannot allocate memory")
	expectNothing(run("nvidia", "unseen-without", gpu))
	expectCall(t, 0, []string{key, "rxe0", "unseen "}, "status", "default/unseen")
	if found, status := doctor(t, "--only", "container-unseen"); status != 1 || strings.Count(fmt.Sprint(found), key) != 1 {
		t.Errorf("doctor: exit status %d, %+v", status, found)
	}

	const config = "/etc/rdma-spec/config.yaml"
	scratch.File(t, config, "optIn: {mofedRuntimeHandlers: ['nvidia*']}\n", 0o644)
	await.That(t, patience, "in force: the key",
		func() bool { return strings.Contains(readLog("/run/rdma-spec/policy.yaml"), "nvidia*") })
	expect(run("nvidia", "listed", mofed), "unlimited", everySet, "ok    register 64Mi with rxe0: done")
	expectNothing(run("nvidia", "listed-without", gpu))
	expectCall(t, 0, []string{"environment", "rxe0"}, "status", "default/listed")

	toolkitStarts()
	systemd.Manage(t, "restart", "containerd")
	awaitCRI(t)
	succeed(t, "configure", "--all")
	succeed(t, "configure", "handler", "rdma", "--like", "nvidia")
	expect(run("rdma", "handler", mofed), "unlimited", "CapPrm CapEff CapBnd", "ok    register 64Mi with rxe0: done")

	systemd.Manage(t, "disable", "--now", "nri-rdma")
	succeed(t, "configure", "--revert", "--restart")
	awaitCRI(t)
	n.expectKept(t)
	expectFiles(t, before, filesIn(t, "/etc/containerd"))
}
