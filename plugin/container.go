// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// container returns all that a decision about a container depends on: the runtime's event and, on demand, the kubelet's
// answer.
func (p *Plugin) container(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) policy.Container {
	c := ContainerOf(pod, ctr)
	if p.Resources != nil {
		c.Resources = func() ([]string, bool, error) {
			return p.Resources.Names(ctx, pod.GetId(), pod.GetNamespace(), pod.GetName(), ctr.GetName())
		}
	}
	return c
}

// hcasWithin returns the inventory for a decision, which waits for the first one until the context is done.
func hcasWithin(ctx context.Context, i *inventory.Inventory) func() (*hca.Inventory, error) {
	return func() (*hca.Inventory, error) { return i.HCAs(ctx) }
}

// ContainerOf returns what a decision depends on and the runtime's event contains.
func ContainerOf(pod *api.PodSandbox, ctr *api.Container) policy.Container {
	c := policy.Container{
		Namespace:      pod.GetNamespace(),
		Pod:            pod.GetName(),
		Name:           ctr.GetName(),
		RuntimeHandler: pod.GetRuntimeHandler(),
		Annotations:    policy.Annotations(pod.GetAnnotations(), ctr.GetName()),
		HostNetwork:    hostNetwork(pod.GetLinux().GetNamespaces()),
		AllDevices:     policy.AllDevices(deviceRules(ctr)),
		MemoryLimit:    ctr.GetLinux().GetResources().GetMemory().GetLimit().GetValue(),
	}
	for _, d := range ctr.GetLinux().GetDevices() {
		c.Devices = append(c.Devices, policy.Device{Path: d.GetPath(), Type: d.GetType(),
			Major: d.GetMajor(), Minor: d.GetMinor()})
	}
	return c
}

// hostNetwork reports whether a sandbox with these namespaces is in the host's network namespace: the others have one
// of their own.
func hostNetwork(namespaces []*api.LinuxNamespace) bool {
	return len(namespaces) > 0 && !slices.ContainsFunc(namespaces,
		func(n *api.LinuxNamespace) bool { return n.GetType() == "network" })
}

// deviceRules returns the rules of a container's device cgroup.
func deviceRules(ctr *api.Container) []specs.LinuxDeviceCgroup {
	var rules []specs.LinuxDeviceCgroup
	for _, r := range ctr.GetLinux().GetResources().GetDevices() {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: r.GetAllow(), Type: r.GetType(), Major: r.GetMajor().Get(),
			Minor: r.GetMinor().Get(), Access: r.GetAccess()})
	}
	return rules
}

// reportedMemlock returns the RLIMIT_MEMLOCK that the runtime reports of a container; known is false if it reports
// none: runtimes do from containerd 2.3 and CRI-O 1.36 on.
func reportedMemlock(ctr *api.Container) (limit spec.Rlimit, known bool) {
	for _, r := range ctr.GetRlimits() {
		if r.GetType() == spec.RlimitMemlock {
			limit, known = spec.Rlimit{Soft: spec.LimitOf(r.GetSoft()), Hard: spec.LimitOf(r.GetHard())}, true
		}
	}
	return limit, known
}
