// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// TestDoctorWithoutPlugin looks at a node without the plugin, and then with it. A container at the runtime's own limit
// is named with its cause, and one that is root with IPC_LOCK is not: the kernel lets it register all memory. Those that
// the plugin adjusts are well.
func TestDoctorWithoutPlugin(t *testing.T) {
	if err := os.RemoveAll(policyFile); err != nil { // of another test: this node has not had the plugin yet
		t.Fatal(err)
	}
	pod := runPod(t, containerd.Pod{Namespace: "ml", Name: "trainer"})
	low := runContainer(t, pod, withLocker(containerd.Container{Name: "low", Devices: containerd.Verbs(0)}))
	root := runContainer(t, pod, withLocker(containerd.Container{Name: "root", Devices: containerd.Verbs(0),
		AddCaps: []string{"IPC_LOCK"}}))
	// What the doctor says is what the kernel does.
	const megabytes = 32 << 20
	if got := locker(t, low, "mmap", megabytes); got == "locked" {
		t.Errorf("the container at the runtime's limit locks 32 MiB")
	}
	if got := locker(t, root, "mmap", megabytes); got != "locked" {
		t.Errorf("root with IPC_LOCK cannot lock 32 MiB: %s", got)
	}
	wrong := wrongMemlock(t)
	if len(wrong) != 1 || wrong[0].Object != "container ml/trainer low" ||
		!strings.Contains(wrong[0].Text, "can register 8Mi at most") ||
		!strings.Contains(wrong[0].Text, "nothing on this node gives memlock") {
		t.Errorf("without the plugin: %+v", wrong)
	}
	if file := os.Getenv("RDMA_RECORD"); file != "" { // make recorded-node
		if _, stderr, status := call(t, "collect", "--to", file, "--patience", "1m"); status != 0 {
			t.Errorf("collect: exit status %d\n%s", status, stderr)
		}
	}
	startPlugin(t, "{}")
	runContainer(t, pod, containerd.Container{Name: "adjusted", Devices: containerd.Verbs(0), User: 1000})
	call(t, "repair", "ml/trainer") // what was created before
	if wrong := wrongMemlock(t); len(wrong) > 0 {
		t.Errorf("with the plugin: %+v", wrong)
	}
}

// wrongMemlock returns what the doctor finds wrong with the memlock of containers, and of the node.
func wrongMemlock(t *testing.T) []finding {
	t.Helper()
	all, status := doctor(t, "--only", "container-memlock,container-ipc-lock,memlock-source")
	wrong := withStatus(all, "wrong")
	if (status == 1) != (len(wrong) > 0) {
		t.Errorf("exit status %d with %d faults: %+v", status, len(wrong), all)
	}
	return wrong
}
