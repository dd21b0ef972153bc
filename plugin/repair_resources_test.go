// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// The kubelet is asked once about a container, and not at all about those that need it not.
func TestRunningContainersByResource(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"by-device": {low}, "by-resource": {low}, "unrelated": {low}})
	kubelet := &kubelet{names: map[string][]string{"pod-by-resource": {"rdma/hca"}}, down: true}
	_, p := looking(t, "optIn: {resources: [rdma/*]}", Options{Root: root, Limits: limits.On(table), Resources: kubelet},
		existing("by-device", verbs), existing("by-resource"), existing("unrelated"))
	p.expectStats(t, RepairStats{RDMA: 1, Below: 1})
	kubelet.set(false)
	p.expectStats(t, RepairStats{RDMA: 2, Below: 2})
	p.passes(t, 3)
	if got := kubelet.answered["pod-by-device"] + 10*kubelet.answered["pod-by-resource"] + 100*kubelet.answered["pod-unrelated"]; got != 110 {
		t.Errorf("answered about %v, want once about each but by-device", kubelet.answered)
	}
	if n := len(p.repair.all()); n != 2 {
		t.Errorf("%d containers are watched, want those 2 that can be RDMA containers", n)
	}
}

// A configuration that asks about other resources may name containers that were not kept: the runtime lists them anew, without a gap.
func TestOtherResourcesNeedAnotherList(t *testing.T) {
	root := hcatest.V100(t)
	table := node(map[string][]spec.Limit{"by-resource": {low}})
	kubelet := &kubelet{names: map[string][]string{"pod-by-resource": {"rdma/hca"}}}
	nri, p := looking(t, "{}", Options{Root: root, Limits: limits.On(table), Resources: kubelet}, existing("by-resource"))
	p.expectStats(t, RepairStats{})
	if n := len(p.repair.all()); n != 0 {
		t.Errorf("%d containers are watched", n)
	}
	p.use(mustPolicy(t, "optIn: {resources: [rdma/*]}"))
	await.That(t, await.Patience, "registered anew", func() bool { return nri.Synchronised() == 2 })
	p.expectStats(t, RepairStats{RDMA: 1, Below: 1})
	p.use(mustPolicy(t, "{memlock: 1Gi, optIn: {resources: [rdma/*]}}"))
	p.expectStats(t, RepairStats{RDMA: 1, Below: 1})
	if nri.Synchronised() != 2 {
		t.Error("registered anew for nothing")
	}
}
