// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
)

// What a container may not have fails its creation with one line, and leaves nothing behind.
func TestRefusals(t *testing.T) {
	plugin := startPlugin(t, listed+"memlock: 16Gi\n")
	tests := map[string]struct {
		namespace  string
		annotation string
		devices    []containerd.Device
		want       string
	}{
		"namespace-not-listed": {namespace: "guest", annotation: "true",
			want: `namespace "guest" may not opt in by annotation`},
		"another-hca": {namespace: "guest", annotation: "{devices: [rxe1]}", devices: containerd.Verbs(0),
			want: `HCA "rxe1", and the container holds other verbs devices, to which none is added`},
		"unknown-key": {namespace: "ml-a", annotation: "{memlok: 1Gi}", want: `unknown field "memlok"`},
		"wrong-type": {namespace: "ml-a", annotation: "{devices: {a: b}}",
			want: "devices is neither all nor none nor a list of HCA names"},
		"unreadable": {namespace: "ml-a", annotation: "yes please", want: `"yes please" is not understood`},
		"no-such-hca": {namespace: "ml-a", annotation: "{devices: [mlx5_7]}",
			want: `HCA "mlx5_7", which this node does not have: it has rxe0 (ACTIVE), rxe1 (ACTIVE), rxe2 (DOWN)`},
		"memlock-above-policy": {namespace: "ml-a", annotation: "{memlock: 17Gi}",
			want: `asks for memlock: 17Gi, and rule "default" gives 16Gi`},
		"memlock-unlimited": {namespace: "ml-a", annotation: "{memlock: unlimited}",
			want: `asks for memlock: unlimited, and rule "default" gives 16Gi`},
		"ipc-lock-with-a-limit": {namespace: "ml-a", annotation: "{ipcLock: true}",
			want: "asks for ipcLock, which would void the memlock of 16Gi"},
	}
	pods := map[string]*containerd.Sandbox{}
	for _, namespace := range []string{"guest", "ml-a"} {
		annotations := map[string]string{}
		for name, test := range tests {
			annotations["rdma.noderesource.dev/container."+name] = test.annotation
		}
		pods[namespace] = runPod(t, containerd.Pod{Namespace: namespace, Name: "refused", Annotations: annotations})
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := pods[test.namespace]
			_, err := pod.Create(within(t, patience), containerd.Container{Name: name, Devices: test.devices})
			if err == nil {
				t.Fatal("the container was created")
			}
			promised := "rdma: pod " + test.namespace + "/refused, container " + name + ": "
			if !strings.Contains(err.Error(), promised) || !strings.Contains(err.Error(), test.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("the refusal is\n%s\nwant one line with %q and %q", err, promised, test.want)
			}
			// the runtime may have its answer first
			if err := plugin.AwaitLog(within(t, patience), "container="+name); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(plugin.Log(), "container="+name); got != 1 {
				t.Errorf("the plugin logged %d lines about it, want 1", got)
			}
		})
	}
	for namespace, pod := range pods {
		left, err := onRuntime().CRI().ListContainers(within(t, patience),
			&cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: pod.ID}})
		if err != nil {
			t.Fatal(err)
		}
		if len(left.Containers) > 0 {
			t.Errorf("containers are left behind in %s: %v", namespace, left.Containers)
		}
	}
}
