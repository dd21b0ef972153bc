// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// Under a containerd that may not raise limits, RDMA containers start with its hard limit, and the plugin says how to
// give it the right. With more, runc fails the start. (crun 1.8 starts no container there: it raises its own limit.)
func TestRuntimeThatMayNotRaiseLimits(t *testing.T) {
	o := options()
	o.Bounded = true
	restart(t, o)
	plugin := startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Name: "bounded",
		Annotations: map[string]string{"rdma.noderesource.dev/container.asks": "{memlock: 1Gi}"}})
	id := runContainer(t, pod, containerd.Container{Name: "trainer", User: 1000, Devices: containerd.Verbs(0)})
	expectMemlock(t, id, kernelDefault)
	expectCapabilities(t, id, everySet)
	expectLogged(t, plugin, "the runtime may not raise limits", "memlock is cut from unlimited to 8Mi", "msg=adjusted",
		"LimitMEMLOCK=infinity")
	expectRefused(t, pod, containerd.Container{Name: "asks", Devices: containerd.Verbs(0)},
		"no container with more than 8Mi can start")
	plugin.Stop()

	startByName(t)
	_, err := pod.Run(within(t, patience), containerd.Container{Name: "cdi-high"})
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "operation not permitted") {
		t.Errorf("a container with more than the runtime can set: %v", err)
	}
	t.Logf("with more, %s says: %v", *runtime, err)
}
