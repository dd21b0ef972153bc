// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// claimOf is a claim for one of the driver's HCAs.
const claimOf = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: DRIVER}
spec: {selectors: [{cel: {expression: "device.driver == 'DRIVER'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: CLAIM}
spec:
  devices:
    requests:
    - name: nic
      exactly:
        deviceClassName: DRIVER
        selectors: [{cel: {expression: "device.attributes['DRIVER'].hca == 'HCA'"}}]
`

// TestClusterDRA: a DRA driver that uses Kubernetes' own helper library allocates an HCA through a claim. It injects
// the HCA with CDI into the container that has the claim or, like dranet, with an NRI plugin that has index 00 into all
// containers of the pod. The plugin recognizes these containers by the device's number, and the two do not interfere. A
// container or pod without the claim gets nothing.
func TestClusterDRA(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Network = true })              // without a network, the node is not ready, and no pod is placed on it
	onNode(t, "cp "+filepath.Join(*bin, "rdma-spec")+" /usr/local/bin/rdma-spec") // pods have the node's /usr
	t.Cleanup(func() { onNodeAfter(t, "rm /usr/local/bin/rdma-spec") })
	c := startWholeCluster(t)
	k := join(t, c)
	plugin := startPluginWith(t)
	for _, test := range []struct {
		name, hca, device string
		both              bool // all containers of the pod have the devices
		flags             []string
	}{
		{name: "cdi", hca: "rxe0", device: "uverbs0"},
		{name: "nri", hca: "rxe1", device: "uverbs1", both: true, flags: []string{"--nri"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			driver := test.name + ".dra.rdma-node.test"
			startDriver(t, c, k, append(test.flags, "--name", driver)...)
			claim := filepath.Join(scratch.Dir(t), "claim.yaml")
			scratch.File(t, claim,
				strings.NewReplacer("DRIVER", driver, "CLAIM", test.name, "HCA", test.hca).Replace(claimOf), 0o600)
			kubectl(t, c, "apply", "-f", claim)
			main, beside := kubelet.Container{Name: "main"}, kubelet.Container{Name: "beside"}
			pod := placePod(t, c, k, kubelet.Pod{Name: test.name, Containers: []kubelet.Container{main, beside}}, test.name)
			without := placePod(t, c, k, kubelet.Pod{Name: test.name + "-without", Containers: []kubelet.Container{main}}, "")

			expect := func(pod *staticPod, container string, holds bool) {
				t.Helper()
				if !holds {
					pod.expectHolds(t, container, kernelDefault)
					expectCapabilities(t, pod.running(t, container), "")
					pod.expectUntouched(t, plugin, container)
					return
				}
				pod.expectHolds(t, container, "unlimited", "rdma_cm", test.device)
				expectCapabilities(t, pod.running(t, container), everySet)
				pod.expectAdjusted(t, plugin, container, "signal=device", "/dev/infiniband/"+test.device+" ("+test.hca+")")
				said := shell(t, pod.running(t, container), "/usr/local/bin/rdma-spec verify 2>&1 || true")
				if !strings.Contains(said, "ok    register 64Mi with "+test.hca+": done") {
					t.Errorf("container %s: verify does not register memory:\n%s", container, said)
				}
			}
			expect(pod, "main", true)
			expect(pod, "beside", test.both)
			expect(without, "main", false)
		})
	}
}

// startDriver runs the DRA driver until the test ends.
func startDriver(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet, args ...string) {
	t.Helper()
	driver := start(t, filepath.Join(nodeParts(t).Dir(), "dra-driver", "dra-driver"),
		append(args, "--kubeconfig", c.Kubeconfig(), "--node", k.NodeName())...)
	awaitLog(t, driver, "msg=published")
}

// placePod creates a pod that the scheduler places. Its first container has the claim, unless claim is "". The pod is
// removed when the test ends.
func placePod(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet, pod kubelet.Pod, claim string) *staticPod {
	t.Helper()
	manifest := pod.Manifest()
	if claim != "" {
		manifest.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: &claim}}
		manifest.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic"}}
	}
	placed := createPod(t, c, k, manifest)
	awaitThat(t, c, clusterPatience, "runs pod "+pod.Name, func() bool {
		now, err := c.Pod(t.Context(), pod.Name)
		return err == nil && now.Status.Phase == corev1.PodRunning
	})
	return placed
}
