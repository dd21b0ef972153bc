// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// The RDMA_CM module is unloaded and loaded again. Within a second, containers get the devices that exist, and the log
// says what is missing and what to do. After the module is loaded, containers get its device again, without a restart
// of the plugin.
func TestConnectionManagerComesLate(t *testing.T) {
	plugin := startPlugin(t, listed)
	pod := runOptedIn(t)
	const missing = "the node has no usable /dev/infiniband/rdma_cm, so RDMA_CM connections will fail: " +
		"to load the kernel module, run modprobe rdma_ucm"
	for _, step := range []struct {
		name, command, want string
		missing             bool // the log says so
	}{
		{"with", "test -c /dev/infiniband/rdma_cm", "rdma_cm uverbs0 uverbs1", false},
		{"without", "rmmod rdma_ucm && test ! -e /dev/infiniband/rdma_cm", "uverbs0 uverbs1", true},
		{"late", "modprobe rdma_ucm && test -c /dev/infiniband/rdma_cm", "rdma_cm uverbs0 uverbs1", true},
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
			return devices(t, id) == step.want
		})
		if got := strings.Contains(plugin.Log(), missing); got != step.missing {
			t.Errorf("after container %s the log says that rdma_cm is missing: %v, want %v", step.name, got, step.missing)
		}
	}
	if n := strings.Count(plugin.Log(), "msg=registered"); n != 1 {
		t.Errorf("the plugin has registered %d times, want once", n)
	}
}

// A pod can choose the names of its interfaces. An interface called eth0 in another network namespace does not make
// another HCA match a selector for netdevs.
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
	pod := runOptedIn(t)
	expectDevices(t, runContainer(t, pod, containerd.Container{}), "rdma_cm", "uverbs0") // only the HCA on the node's eth0
}

// HCAs can appear and disappear without a restart of the plugin. An HCA that has disappeared is not injected, and a new
// one is injected within a second.
func TestHotplug(t *testing.T) {
	startPlugin(t, listed)
	pod := runOptedIn(t)
	expectDevices(t, runContainer(t, pod, containerd.Container{Name: "before"}), "rdma_cm", "uverbs0", "uverbs1")
	onNode(t, "rdma link del rxe1")
	t.Cleanup(func() {
		onNodeAfter(t, "test -e /sys/class/infiniband/rxe1 || rdma link add rxe1 type rxe netdev dummy1")
	})
	expectDevices(t, runContainer(t, pod, containerd.Container{Name: "unplugged"}), "rdma_cm", "uverbs0")
	onNode(t, "rdma link add rxe1 type rxe netdev dummy1")
	number := 0
	await.That(t, patience, "a container holds the HCA that has come", func() bool {
		number++
		id := runContainer(t, pod, containerd.Container{Name: fmt.Sprintf("plugged-%d", number)})
		return devices(t, id) == "rdma_cm uverbs0 uverbs1"
	})
}
