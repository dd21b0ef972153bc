// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
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

// A container that was left alone because the kubelet did not answer gets what it should have once the kubelet does; one of which the
// kubelet never tells all stays as it is, and is counted as well.
func TestLeftAloneIsLookedAtAgain(t *testing.T) {
	table := node(map[string][]spec.Limit{"late": {low}, "init": {low}})
	kubelet := &kubelet{names: map[string][]string{"pod-late": {"rdma/hca"}}, down: true}
	nri, p := looking(t, "{optIn: {resources: [rdma/*]}, repair: {mode: fix, every: 30s}}", Options{Root: hcatest.V100(t), Limits: limits.On(table), Resources: kubelet})
	for _, name := range []string{"late", "init"} {
		if got, err := nri.Create(t.Context(), &api.PodSandbox{Id: "pod-" + name, Name: "pod-" + name}, existing(name)); err != nil || len(got.GetRlimits()) > 0 {
			t.Fatalf("%s is created with %v, %v", name, got, err)
		}
	}
	if got := testutil.ToFloat64(p.metrics.unknown); got != 2 {
		t.Errorf("%v containers are counted, want 2", got)
	}
	p.passes(t, 2)
	p.expectStats(t, RepairStats{})
	kubelet.set(false)
	p.expectStats(t, RepairStats{RDMA: 1, Repaired: 1})
	if n := len(p.repair.all()); n != 1 {
		t.Errorf("%d containers are watched, want the one that holds a resource", n)
	}
}
