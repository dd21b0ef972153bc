// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
)

// TestClusterRequired tests the whole path: under the policy, on a node whose runtime's validator is on, a pod that
// only requests a resource does not start without the plugin, and its events contain the reason. With the plugin, it
// starts. A pod without RDMA runs all the time.
func TestClusterRequired(t *testing.T) {
	restartWith(t, func(o *containerd.Options) { o.Validator = true })
	c := startCluster(t)
	apply(t, c, admissionFile(t, "mutating-admission-policy.yaml"))
	awaitAdmission(t, c, shared, true)
	k := joinKubelet(t, c)

	plain := runClusterPod(t, c, k, kubelet.Pod{Name: "plain", Containers: []kubelet.Container{{Name: "main"}}})
	rdma := runClusterPod(t, c, k, kubelet.Pod{Name: "rdma",
		Containers: []kubelet.Container{{Name: "main", Resource: shared}}})
	before := plain.running(t, "main")
	const reason = `required plugin "rdma" not present`
	awaitThat(t, c, kubeletPatience, "says that the plugin is missing", func() bool {
		pod, err := c.Pod(t.Context(), "rdma")
		return err == nil && strings.Contains(waitsFor(pod), reason)
	})
	awaitThat(t, c, kubeletPatience, "has an event that says so", func() bool {
		messages, err := c.PodEvents(t.Context(), "rdma")
		return err == nil && slices.ContainsFunc(messages,
			func(message string) bool { return strings.Contains(message, reason) })
	})
	expectNoContainer(t, "rdma")

	plugin := startPluginWith(t)
	rdma.expectHolds(t, "main", "unlimited", given(0)...)
	rdma.expectAdjusted(t, plugin, "main", "signal=device", "memlock=unlimited")
	awaitThat(t, c, kubeletPatience, "has the pod running", func() bool {
		pod, err := c.Pod(t.Context(), "rdma")
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
	plain.expectHolds(t, "main", kernelDefault)
	plain.expectUntouched(t, plugin, "main")
	if after := plain.running(t, "main"); after != before {
		t.Errorf("the plain pod's container was %s and is %s: it did not run all the time", before, after)
	}
}

// join runs a kubelet in a cluster. It ends with the test.
func join(t *testing.T, c *cluster.Cluster) *kubelet.Kubelet {
	t.Helper()
	k, err := kubelet.Join(t.Context(), c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

// joinKubelet is like join, and the kubelet can allocate a resource.
func joinKubelet(t *testing.T, c *cluster.Cluster) *kubelet.Kubelet {
	t.Helper()
	k := join(t, c)
	offerResources(t, k, deviceplugin.Shared(shared, 0))
	return k
}

// runClusterPod creates a pod on the kubelet's node through the API server. The pod is removed when the test ends.
func runClusterPod(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet, pod kubelet.Pod) *staticPod {
	t.Helper()
	manifest := pod.Manifest()
	manifest.Spec.NodeName = k.NodeName()
	return createPod(t, c, k, manifest)
}

// createPod creates a pod through the API server. The pod is removed when the test ends.
func createPod(t *testing.T, c *cluster.Cluster, k *kubelet.Kubelet, pod *corev1.Pod) *staticPod {
	t.Helper()
	if _, err := c.Create(within(t, patience), pod); err != nil {
		t.Fatal(err)
	}
	finally(t, kubeletPatience, func(ctx context.Context) error {
		if t.Failed() {
			events, err := c.PodEvents(ctx, pod.Name)
			t.Logf("pod %s: %q, %v", pod.Name, events, err)
		}
		return c.DeletePod(ctx, pod.Name)
	})
	return &staticPod{kubelet: k, name: pod.Name}
}

// waitsFor returns the kubelet's reason why a pod's first container is waiting.
func waitsFor(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil {
			return status.State.Waiting.Message
		}
	}
	return ""
}

// expectNoContainer checks that a pod has no container, not even one that was created but not started.
func expectNoContainer(t *testing.T, pod string) {
	t.Helper()
	answer, err := ctrd.CRI().ListContainers(within(t, patience), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range answer.GetContainers() {
		t.Errorf("pod %s has a container, %s", pod, c.GetState())
	}
}
