// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// The module of RDMA_CM goes and comes back: a container gets what is there, the log says what is missing and what to do, and the next
// container has it again, without a restart of the plugin.
func TestConnectionManagerComesLate(t *testing.T) {
	plugin := startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train", Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	const missing = "the node has no /dev/infiniband/rdma_cm: load the module rdma_ucm"
	for _, step := range []struct {
		name, command, want string
		missing             int // how often the log says so
	}{
		{"with", "test -c /dev/infiniband/rdma_cm", "rdma_cm\nuverbs0\nuverbs1", 0},
		{"without", "modprobe -r rdma_ucm && test ! -e /dev/infiniband/rdma_cm", "uverbs0\nuverbs1", 1},
		{"late", "modprobe rdma_ucm && test -c /dev/infiniband/rdma_cm", "rdma_cm\nuverbs0\nuverbs1", 1},
	} {
		if step.name == "without" {
			t.Cleanup(func() { onNodeAfter(t, "modprobe rdma_ucm") })
		}
		onNode(t, step.command)
		id := runContainer(t, pod, containerd.Container{Name: step.name})
		if got := shell(t, id, "ls /dev/infiniband"); got != step.want {
			t.Errorf("container %s holds %q, want %q", step.name, got, step.want)
		}
		expectMemlock(t, id, "unlimited")
		if got := strings.Count(plugin.Log(), missing); got != step.missing {
			t.Errorf("after container %s the log has said %d times that rdma_cm is missing, want %d", step.name, got, step.missing)
		}
	}
	if n := strings.Count(plugin.Log(), "msg=registered"); n != 1 {
		t.Errorf("the plugin has registered %d times, want once", n)
	}
}
