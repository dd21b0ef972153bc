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
	"github.com/rdma-spec/rdma-spec/plugin/repair"
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

// watched returns what repair records of a container that gets a grant, with the injected devices and the granted
// memlock.
func watched(c policy.Container, ctr *api.Container, grant spec.Grant) repair.Container {
	c.Memlock, _ = c.Memlock.Raise(grant.Memlock)
	c.Devices, c.Injected = slices.Clip(c.Devices), c.Injected || len(grant.Devices) > 0
	for _, d := range lacking(c, grant.Devices) {
		c.Devices = append(c.Devices, deviceOf(d))
	}
	return repair.Container{Container: c, ID: ctr.GetId(), Sandbox: ctr.GetPodSandboxId()}
}

// listed returns what repair records of the containers that the runtime lists. A container without a sandbox is left
// out: its namespace and annotations are unknown. containerd lists no sandbox that it could not load.
func listed(pods []*api.PodSandbox, containers []*api.Container) []repair.Container {
	byID := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	list := make([]repair.Container, 0, len(containers))
	for _, ctr := range containers {
		if pod, known := byID[ctr.GetPodSandboxId()]; known {
			list = append(list, watched(ContainerOf(pod, ctr), ctr, spec.Grant{}))
		}
	}
	return list
}

// Trim keeps what listed reads of pods and containers, and nothing else: what a pod's author may write is bounded by a
// message of NRI's alone.
func (*Plugin) Trim(pods []*api.PodSandbox, containers []*api.Container) {
	for i, pod := range pods {
		maps.DeleteFunc(pod.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, policy.AnnotationKey) })
		pods[i] = &api.PodSandbox{Id: pod.GetId(), Namespace: pod.GetNamespace(), Name: pod.GetName(),
			RuntimeHandler: pod.GetRuntimeHandler(), Annotations: pod.GetAnnotations(),
			Linux: &api.LinuxPodSandbox{Namespaces: pod.GetLinux().GetNamespaces()}}
	}
	for i, ctr := range containers {
		var env []string
		if policy.MOFED(ctr.GetEnv()) {
			env = []string{policy.MOFEDVariable + "enabled"}
		}
		resources := ctr.GetLinux().GetResources()
		containers[i] = &api.Container{Id: ctr.GetId(), PodSandboxId: ctr.GetPodSandboxId(), Name: ctr.GetName(), Env: env,
			Rlimits: ctr.GetRlimits(), Linux: &api.LinuxContainer{Devices: ctr.GetLinux().GetDevices(),
				Resources: &api.LinuxResources{Devices: resources.GetDevices(), Memory: resources.GetMemory()}}}
	}
}
