// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

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
		MOFED:          policy.MOFED(ctr.GetEnv()),
		MemoryLimit:    ctr.GetLinux().GetResources().GetMemory().GetLimit().GetValue(),
		Memlock:        reportedMemlock(ctr),
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

// reportedMemlock returns the RLIMIT_MEMLOCK that the runtime reports of a container; zero if it reports none.
func reportedMemlock(ctr *api.Container) (limit spec.Rlimit) {
	for _, r := range ctr.GetRlimits() {
		if r.GetType() == spec.RlimitMemlock {
			limit = spec.Rlimit{Soft: spec.LimitOf(r.GetSoft()), Hard: spec.LimitOf(r.GetHard())}
		}
	}
	return limit
}

// Trim keeps what a look at registration needs, and nothing else: what a pod's author may write is bounded by a message
// of NRI's alone. Of containers without a character device of their own, that is the ID.
func (*Plugin) Trim(pods []*api.PodSandbox, containers []*api.Container) {
	for i, pod := range pods {
		maps.DeleteFunc(pod.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, policy.AnnotationKey) })
		pods[i] = &api.PodSandbox{Id: pod.GetId(), Namespace: pod.GetNamespace(), Name: pod.GetName(),
			RuntimeHandler: pod.GetRuntimeHandler(), Annotations: pod.GetAnnotations()}
	}
	for i, ctr := range containers {
		trimmed := &api.Container{Id: ctr.GetId()}
		if mayHoldVerbs(ctr) {
			resources := ctr.GetLinux().GetResources()
			trimmed = &api.Container{Id: ctr.GetId(), PodSandboxId: ctr.GetPodSandboxId(), Name: ctr.GetName(),
				State: ctr.GetState(), Pid: ctr.GetPid(), Rlimits: ctr.GetRlimits(),
				Linux: &api.LinuxContainer{Devices: ctr.GetLinux().GetDevices(),
					Resources: &api.LinuxResources{Devices: resources.GetDevices(), Memory: resources.GetMemory()}}}
		}
		containers[i] = trimmed
	}
}

// mayHoldVerbs reports whether a container has character devices of its own, and not all of the host's, which may be
// hundreds.
func mayHoldVerbs(ctr *api.Container) bool {
	character := func(d *api.LinuxDevice) bool { return d.GetType() == "c" || d.GetType() == "u" }
	return slices.ContainsFunc(ctr.GetLinux().GetDevices(), character) && !policy.AllDevices(deviceRules(ctr))
}
