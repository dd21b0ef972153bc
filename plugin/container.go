// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"slices"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
	"github.com/rdma-spec/rdma-spec/plugin/wire"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Reads returns the fields that the plugin reads from the runtime's events: the fields that ContainerOf and adjusted
// read, and the IDs of containers and pods. Code that reads another field must add the field here. The decoder skips
// all other fields, since a Kubernetes container has about 15 mounts, 40 environment variables, and a dozen labels.
func (*Plugin) Reads() registration.Reads {
	return registration.Reads{
		Pod: wire.Paths{
			"id": nil, "namespace": nil, "name": nil, "runtime_handler": nil, "linux.namespaces.type": nil,
			"annotations": policy.MayRead,
		},
		Container: wire.Paths{
			"id": nil, "pod_sandbox_id": nil, "name": nil, "state": nil, "pid": nil, "rlimits": nil,
			"env":                beginsWith(policy.MOFEDVariable),
			"linux.devices.path": nil, "linux.devices.type": nil, "linux.devices.major": nil, "linux.devices.minor": nil,
			"linux.resources.devices": nil, "linux.resources.memory.limit": nil,
		},
		Adjustment: wire.Paths{
			"rlimits": nil, "linux.resources.memory.limit": nil,
			"linux.devices.path": nil, "linux.devices.type": nil, "linux.devices.major": nil, "linux.devices.minor": nil,
		},
	}
}

func beginsWith(prefix string) func([]byte) bool {
	return func(element []byte) bool { return bytes.HasPrefix(element, []byte(prefix)) }
}

// ContainerOf returns the part of a runtime's event that a decision depends on.
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
	}
	c.Memlock, _ = memlockOf(ctr.GetRlimits())
	for _, d := range ctr.GetLinux().GetDevices() {
		c.Devices = append(c.Devices, heldDevice(d))
	}
	return c
}

func heldDevice(d *api.LinuxDevice) policy.Device {
	return policy.Device{Path: d.GetPath(), Type: d.GetType(), Major: d.GetMajor(), Minor: d.GetMinor()}
}

// hostNetwork reports whether a sandbox with these namespaces is in the host's network namespace. A sandbox that is not
// in the host's network namespace lists a network namespace.
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

// memlockOf returns the last RLIMIT_MEMLOCK in a list of rlimits, and whether the list contains RLIMIT_MEMLOCK.
func memlockOf(rlimits []*api.POSIXRlimit) (limit spec.Rlimit, has bool) {
	for _, r := range rlimits {
		if r.GetType() == spec.RlimitMemlock {
			limit = spec.Rlimit{Soft: spec.LimitOf(r.GetSoft()), Hard: spec.LimitOf(r.GetHard())}
			has = true
		}
	}
	return limit, has
}

// mayHoldVerbs reports whether a container has character devices but no access to all of the host's devices. A
// container with access to all of the host's devices can have hundreds of devices.
func mayHoldVerbs(ctr *api.Container) bool {
	character := func(d *api.LinuxDevice) bool { return d.GetType() == "c" || d.GetType() == "u" }
	return slices.ContainsFunc(ctr.GetLinux().GetDevices(), character) && !policy.AllDevices(deviceRules(ctr))
}
