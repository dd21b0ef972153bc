// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// The module of RDMA_CM goes and comes back: within a second containers get what is there, the log has what is missing
// and what to do, and containers have it again, without a restart of the plugin.
func TestConnectionManagerComesLate(t *testing.T) {
	plugin := startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	const missing = "the node has no sound /dev/infiniband/rdma_cm, so connections by RDMA_CM will fail: load the " +
		"module rdma_ucm"
	for _, step := range []struct {
		name, command, want string
		missing             bool // the log has said so
	}{
		{"with", "test -c /dev/infiniband/rdma_cm", "rdma_cm\nuverbs0\nuverbs1", false},
		{"without", "rmmod rdma_ucm && test ! -e /dev/infiniband/rdma_cm", "uverbs0\nuverbs1", true},
		{"late", "modprobe rdma_ucm && test -c /dev/infiniband/rdma_cm", "rdma_cm\nuverbs0\nuverbs1", true},
	} {
		if step.name == "without" {
			t.Cleanup(func() { onNodeAfter(t, "modprobe rdma_ucm") })
		}
		onNode(t, step.command)
		number := 0
		await.That(t, patience, fmt.Sprintf("%s: a container holds %q", step.name, step.want), func() bool {
			number++
			id := runContainer(t, pod, containerd.Container{Name: fmt.Sprintf("%s-%d", step.name, number)})
			expectMemlock(t, id, "unlimited")
			return shell(t, id, "ls /dev/infiniband") == step.want
		})
		if got := strings.Contains(plugin.Log(), missing); got != step.missing {
			t.Errorf("after container %s the log says that rdma_cm is missing: %v, want %v", step.name, got, step.missing)
		}
	}
	if n := strings.Count(plugin.Log(), "msg=registered"); n != 1 {
		t.Errorf("the plugin has registered %d times, want once", n)
	}
}
