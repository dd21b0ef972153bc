// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// connectX is a ConnectX-5's PCI device, whose HCA is rxe0, for the RDMA shared device plugin. A soft HCA has no PCI
// device.
var connectX = hcatest.Files{
	"0000:5e:00.0/modalias":         "pci:v000015B3d00001017sv000015B3sd00000007bc02sc00i00\n",
	"0000:5e:00.0/driver":           hcatest.Link("../../../../bus/pci/drivers/mlx5_core"),
	"0000:5e:00.0/net/eth0/":        "",
	"0000:5e:00.0/infiniband/rxe0/": "",
}

// TestKubeletSharedDevicePlugin runs static pods on a real kubelet with NVIDIA's RDMA shared device plugin, in both of
// its modes. Without any configuration, a container to which its resource is allocated gets memlock and IPC_LOCK,
// whoever its user is, and registers memory. The same pod without the resource gets nothing. The test needs the node's
// Kubernetes parts.
func TestKubeletSharedDevicePlugin(t *testing.T) {
	onNode(t, "cp "+filepath.Join(*bin, "rdma-spec")+" /usr/local/bin/") // containers have the node's programs
	t.Cleanup(func() { onNodeAfter(t, "rm /usr/local/bin/rdma-spec") })
	k := startKubelet(t)
	plugin := startPlugin(t, "{}")
	for mode, flags := range map[string][]string{"devices": nil, "cdi": {"--use-cdi"}} {
		t.Run(mode, func(t *testing.T) {
			resource := startSharedDevicePlugin(t, k, "hca_shared_"+mode, flags...)
			containers := func(resource string) []kubelet.Container {
				return []kubelet.Container{{Name: "root", Resource: resource}, {Name: "user", Resource: resource, User: 1000}}
			}
			with := runStaticPod(t, k, kubelet.Pod{Name: mode, Containers: containers(resource)})
			without := runStaticPod(t, k, kubelet.Pod{Name: mode + "-without", Containers: containers("")})
			for _, container := range []string{"root", "user"} {
				with.expectHolds(t, container, "unlimited", given(0)...)
				with.expectAdjusted(t, plugin, container, "signal=device", "rule=default", "memlock=unlimited",
					"/dev/infiniband/uverbs0 (rxe0)")
				expectCapabilities(t, with.running(t, container), everySet)
				expectVerifyIn(t, with.running(t, container), "/usr/local/bin/rdma-spec", 0,
					"ok    register 64Mi with rxe0: done")

				without.expectHolds(t, container, kernelDefault)
				without.expectUntouched(t, plugin, container)
				expectCapabilities(t, without.running(t, container), "")
			}
			const ok = "device unlimited true [rxe0] ok"
			name := kubelet.Namespace + "/" + with.name
			expectStatus(t, map[string]string{name + " root": ok, name + " user": ok}, name, kubelet.Namespace+"/"+without.name)
		})
	}
}

// startSharedDevicePlugin runs the device plugin with a resource for rxe0, and returns the resource's name when the
// kubelet can allocate it. The plugin ends with the test.
func startSharedDevicePlugin(t *testing.T, k *kubelet.Kubelet, resource string, flags ...string) string {
	t.Helper()
	config := filepath.Join(scratch.Dir(t), "config.json")
	scratch.File(t, config, fmt.Sprintf(`{"configList": [{"resourceName": %q, "rdmaHcaMax": 63,
		"selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["eth0"]}}]}`, resource), 0o644)
	// Only the device plugin sees the PCI device, because it has its own mount namespace.
	start(t, "unshare", append([]string{"--mount", "sh", "-ec",
		`mount --bind "$0" /sys/bus/pci/devices && exec "$@"`, connectX.Root(t),
		nodeParts(t).SharedDevicePlugin(), "--config-file", config}, flags...)...)
	if err := k.AwaitAdvertised(within(t, kubeletPatience), "rdma/"+resource); err != nil {
		t.Fatal(err)
	}
	return "rdma/" + resource
}

// expectStatus compares what status reports about the RDMA containers of pods, by container.
func expectStatus(t *testing.T, want map[string]string, pods ...string) {
	t.Helper()
	all, status := statusOf(t, pods...)
	got := map[string]string{}
	for _, c := range all {
		got[fmt.Sprintf("%s/%s %s", c.Namespace, c.Pod, c.Container)] = fmt.Sprint(c.Signal, " ", c.Memlock.Soft, " ",
			c.IPCLock, " ", c.HCAs, " ", c.State)
	}
	if diff := cmp.Diff(want, got); diff != "" || status != 0 {
		t.Errorf("status: exit status %d (-want +got):\n%s", status, diff)
	}
}
