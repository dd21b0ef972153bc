// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/churn"
)

// testHostNetwork: at boot, a plugin in the node's network is registered while pods with their own network wait for the
// CNI plugin. Its updates are handovers too, even if the runtime hangs during one.
func testHostNetwork(t *testing.T, d *daemonSet, k *kubelet.Kubelet) {
	t.Cleanup(func() { d.tell(t) })
	k.Stop()
	p := &policies{daemonSet: d, k: joinKubelet(t, d.c), chart: released(t, "nri-rdma-*.tgz")}
	p.helm(t, "install", "nri-rdma", p.chart, "--create-namespace", "--set", "extraArgs={--budget="+budget+"}")
	p.awaitRollout(t)
	restoreNetwork := p.bootWithoutNetwork(t)
	d.awaitEvent(t, "without a network", "network is not ready")
	before := p.registrations()
	restoreNetwork()
	p.awaitRegistrations(t, before+1)
	p.awaitRollout(t)

	p.upgrade(t, "--set", "hostNetwork=true,hostNetworkMetrics="+metricsAddress+",validator.enabled=true")
	p.awaitRollout(t)
	expectMetric(t, "nri_rdma_connected 1")
	p.hang(t)
	expectMetric(t, "nri_rdma_connected 1")

	before = p.registrations()
	restoreNetwork = p.bootWithoutNetwork(t)
	p.awaitRegistrations(t, before+1)
	p.expectLimit(t, "unlimited") // in the node's network, like all pods of package kubelet
	restoreNetwork()
	p.awaitRollout(t)
	p.helm(t, "uninstall", "nri-rdma")
	p.awaitNoPods(t)
}

// bootWithoutNetwork simulates a boot of a node on which the CNI plugin starts late: it starts when restore is called.
func (p *policies) bootWithoutNetwork(t *testing.T) (restore func()) {
	t.Helper()
	p.shutDown(t)
	const away = "/run/network.conflist"
	onNode(t, "mv "+containerd.Network+" "+away)
	p.k = joinKubelet(t, p.c)
	return func() { onNode(t, "mv "+away+" "+containerd.Network) }
}

// isServing is how state's result ends if the pod is ready and is not being deleted.
const isServing = "ready: true, deleted: false"

// hangs is how long hang stops the runtime: longer than the 30 s after which a kubelet reports that its runtime is
// down.
const hangs = time.Minute

// hang stops the runtime during a rollout. The serving plugin stays until the next one is ready, so no container is
// created without its limit. containerd drops a plugin whose answer it did not read in time, and the plugin registers
// again. How often this happens depends on the requests in progress.
func (p *policies) hang(t *testing.T) {
	t.Helper()
	old, before := p.pod(t), p.registrations()
	pods := churn.Start(t, func(ctx context.Context, number int) error {
		return runToEnd(ctx, p.c, p.k, fmt.Sprintf("hung-%d", number))
	})
	p.upgrade(t, "--set", "podAnnotations.upgrade=while-it-hangs")
	awaitThat(t, p.c, kubeletPatience, "has a second pod of the plugin", func() bool {
		all, err := p.pods(t.Context())
		return err == nil && len(all) == 2
	})
	signal(t, ctrd, syscall.SIGSTOP)
	begin, states := time.Now(), []string(nil)
	err := p.c.Await(within(t, kubeletPatience), "hangs long enough", func() bool {
		if state := p.state(t, old.Name); len(states) == 0 || !strings.HasSuffix(states[len(states)-1], state) {
			states = append(states, fmt.Sprintf("after %s %s", time.Since(begin).Round(time.Second), state))
		}
		return time.Since(begin) > hangs
	})
	signal(t, ctrd, syscall.SIGCONT)
	goesOn := time.Now()
	t.Logf("while the runtime hung: %s", strings.Join(states, "; "))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(states[len(states)-1], isServing) {
		t.Errorf("the plugin that serves was taken away while the runtime hung")
	}
	p.awaitRollout(t)
	pods.AwaitMore(t, kubeletPatience)
	pods.End()
	expectUnlimited(t, "hung", pods.Count())
	t.Logf("%s after the runtime went on, the rollout was done, with %d registrations", time.Since(goesOn).Round(time.Second),
		p.registrations()-before)
}

// state returns a short description of what the API server knows about the node and a pod of the plugin.
func (p *policies) state(t *testing.T, name string) string {
	node, err := p.c.Node(t.Context(), p.k.NodeName())
	if err != nil {
		return err.Error()
	}
	pods, err := p.pods(t.Context())
	if err != nil {
		return err.Error()
	}
	pod := "gone"
	for _, one := range pods {
		if one.Name == name {
			pod = fmt.Sprintf("ready: %t, deleted: %t", isReady(one), one.DeletionTimestamp != nil)
		}
	}
	nodeReady := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return fmt.Sprintf("the node is ready: %t, the old pod is %s", nodeReady, pod)
}
