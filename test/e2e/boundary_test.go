// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
)

// What a device plugin has allotted is never added to, although the namespace may have HCAs injected: the other ones
// may belong to other pods.
func TestAllotmentStays(t *testing.T) {
	startPlugin(t, listed)
	pod := runPod(t, containerd.Pod{Namespace: "ml-train", Annotations: map[string]string{
		"rdma.noderesource.dev/container.greedy": "{devices: all}",
		"rdma.noderesource.dev/container.named":  "{devices: [rxe1]}",
	}})
	greedy := runContainer(t, pod, containerd.Container{Name: "greedy", Devices: containerd.Verbs(0)})
	expectMemlock(t, greedy, "unlimited")
	if got, want := shell(t, greedy, "ls /dev/infiniband"), "rdma_cm\nuverbs0"; got != want {
		t.Errorf("the container holds %q, want what it was allotted: %q", got, want)
	}
	_, err := pod.Create(within(t, patience), containerd.Container{Name: "named", Devices: containerd.Verbs(0)})
	if err == nil || !strings.Contains(err.Error(), "the container holds other verbs devices, to which none is added") {
		t.Errorf("a container that holds rxe0 and asks for rxe1: %v", err)
	}
}

// A pod's annotation that only asks for less counts for its trainer, and lets the sidecar beside it start.
func TestSidecarBesideTheTrainer(t *testing.T) {
	startPlugin(t, "{}")
	pod := runPod(t, containerd.Pod{Namespace: "guest", Annotations: map[string]string{
		"rdma.noderesource.dev/pod":             "{memlock: 1Gi}",
		"rdma.noderesource.dev/container.meant": "{memlock: 1Gi}",
	}})
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "trainer", Devices: containerd.Verbs(0)}),
		strconv.Itoa(1<<30))
	expectMemlock(t, runContainer(t, pod, containerd.Container{Name: "sidecar"}), kernelDefault)
	_, err := pod.Create(within(t, patience), containerd.Container{Name: "meant"})
	if err == nil || !strings.Contains(err.Error(), "may not opt in by annotation") {
		t.Errorf("a container without a signal that an annotation names: %v", err)
	}
}

// A pod calls its interfaces as it likes. One called eth0 in another network namespace makes no other HCA pass a
// selector of netdevs.
func TestNetdevOfAnotherNamespace(t *testing.T) {
	t.Cleanup(func() { onNodeAfter(t, "ip netns del pod 2>/dev/null; true") })
	onNode(t, "ip netns add pod && ip link add macvlan0 link dummy1 type macvlan && ip link set macvlan0 netns pod name "+
		"eth0 && "+
		"ip -n pod address add 10.0.101.7/24 dev eth0 && ip -n pod link set eth0 up")
	onNode(t, "cat /sys/class/infiniband/rxe1/ports/1/gid_attrs/ndevs/* 2>/dev/null | grep -qx eth0 || { echo 'the GID "+
		"table does not name the pod'\\''s interface: this tests nothing'; exit 1; }")

	var node hca.Inventory
	if err := json.Unmarshal(rdmaSpec(t, "devices", "-o", "json"), &node); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, h := range node.HCAs {
		got[h.Name] = h.Ports[0].Netdevs
	}
	if diff := cmp.Diff(map[string][]string{"rxe0": {"eth0"}, "rxe1": {"dummy1"}, "rxe2": {"dummy2"}}, got); diff != "" {
		t.Errorf("netdevs of the HCAs (-want +got):\n%s", diff)
	}
	startPlugin(t, "inject: {namespaces: [ml-*], netdevs: [eth0]}")
	pod := runPod(t, containerd.Pod{Namespace: "ml-train",
		Annotations: map[string]string{"rdma.noderesource.dev": "true"}})
	if got, want := shell(t, runContainer(t, pod, containerd.Container{}), "ls /dev/infiniband"),
		"rdma_cm\nuverbs0"; got != want {
		t.Errorf("the container holds %q, want the HCA on the node's eth0 alone: %q", got, want)
	}
}

// The kubelet does not list ordinary init containers: one gets the least of what the rules give that might be about it,
// and starts although it has no memory limit, which a rule wants.
func testInitContainers(t *testing.T, k *kubelet.Kubelet) {
	plugin := startPlugin(t, `
rules:
- {name: capped, match: {resources: [rdma/*]}, memlock: 1Gi}
- {name: limited, match: {resources: [nvidia.com/*]}, memlock: memory-limit}
`, "--pod-resources-socket", startRelay(t, k, nil).socket)
	pod := runStaticPod(t, k, kubelet.Pod{
		Name:       "init",
		Init:       []kubelet.Container{{Name: "fetch", Script: sayMemlock, Resource: shared}},
		Containers: []kubelet.Container{{Name: "worker", Resource: shared}},
	})
	pod.expectHolds(t, "worker", strconv.Itoa(1<<30), given(0)...)
	pod.expectAdjusted(t, plugin, "worker", "signal=device", "rule=capped", "memlock=1Gi")
	pod.expectSaid(t, "fetch", kernelDefault) // the least: limited gives nothing where there is no memory limit
	less := slices.ContainsFunc(pod.linesOn(plugin, "fetch"),
		func(line string) bool { return strings.Contains(line, "less, because unknown") })
	if !less {
		t.Errorf("the log does not say that the init container gets less:\n%s", plugin.Log())
	}
}
