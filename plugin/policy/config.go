// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"

// ConfigFile is where the configuration is, unless the plugin is told otherwise.
const ConfigFile = "/etc/rdma-spec/config.yaml"

// Config is the administrator's configuration, as it is written in /etc/rdma-spec/config.yaml. New turns it into a
// Policy.
type Config struct {
	// Memlock is the RLIMIT_MEMLOCK that an RDMA container gets: unlimited, memory-limit, or bytes such as 16Gi. A memory
	// limit above the node's memory counts as the node's memory.
	Memlock Scalar `json:"memlock"`
	// IPCLock is whether an RDMA container gets CAP_IPC_LOCK: true (unless its author dropped all capabilities), false,
	// requested (only if its pod's spec adds it, and then for users other than root as well), or always (also if all were
	// dropped, and with a finite memlock). Without always, a memlock other than unlimited comes without the capability,
	// which overrides it.
	IPCLock Scalar `json:"ipcLock"`
	// OptIn is what makes a container an RDMA container.
	OptIn OptIn `json:"optIn"`
	// Inject selects the HCAs that are injected into containers that hold none, and where an annotation can ask for them.
	Inject Inject `json:"inject"`
	// SkipRuntimeHandlers are globs of runtime handlers whose containers are left alone; "" stands for pods without a
	// RuntimeClass.
	SkipRuntimeHandlers []string `json:"skipRuntimeHandlers"`
	// Rules set other values for the containers that they match; the first match wins.
	Rules []Rule `json:"rules"`
}

// OptIn is what makes a container an RDMA container.
type OptIn struct {
	// Devices: a container that holds a verbs device of the node is an RDMA container.
	Devices bool `json:"devices"`
	// Resources are globs of resource names, as in rdma/*; a container that holds such a resource is an RDMA container.
	Resources []string `json:"resources"`
	// Namespaces are globs of the namespaces in which an annotation alone makes a container an RDMA container.
	Namespaces []string `json:"namespaces"`
	// DeviceAnnotations are keys of annotations, without the scope, by which the author of a pod names devices that
	// another NRI plugin gives, as in devices.gke.io. A verbs device that is named so counts as an annotation does: in the
	// namespaces where that opts in, or in a container that was given an HCA according to the kubelet.
	DeviceAnnotations []string `json:"deviceAnnotations"`
	// MOFEDRuntimeHandlers are globs of runtime handlers, as in nvidia*, under which a container with NVIDIA_MOFED=enabled
	// in its environment is an RDMA container: NVIDIA's container runtime gives it HCAs after NRI. An image can set the
	// variable. "" stands for pods without a RuntimeClass.
	MOFEDRuntimeHandlers []string `json:"mofedRuntimeHandlers"`
}

// Inject selects the HCAs that are injected into containers that hold none.
type Inject struct {
	// Namespaces are globs of the namespaces in which an annotation can ask for HCAs; it opts in there as well.
	Namespaces []string `json:"namespaces"`
	Selectors
}

// Selectors choose HCAs. An HCA is selected if its name, its function and its NUMA node match, and one of its ports
// matches both in link layer and in netdev. An empty list of link layers, netdevs or NUMA nodes matches all.
type Selectors struct {
	// Names are globs of HCA names.
	Names []string `json:"names"`
	// Functions are physical, virtual and scalable. A device plugin may have given virtual and scalable functions to
	// another pod.
	Functions []string `json:"functions"`
	// LinkLayers are InfiniBand, Ethernet, or both.
	LinkLayers []string `json:"linkLayers"`
	// Netdevs are globs of network interface names.
	Netdevs []string `json:"netdevs"`
	// NUMANodes are numbers of NUMA nodes; -1 stands for HCAs that belong to none.
	NUMANodes []int `json:"numaNodes"`
	// Management adds the HCA's umad and issm devices, with which a process can disrupt the whole fabric.
	// Only a rule that names namespaces can set it.
	Management bool `json:"management"`
}

// Rule sets other values for the containers that it matches. Keys that it omits have the general values.
type Rule struct {
	// Name is the rule's name in logs, metrics and explain; without one it is rules[N].
	Name string `json:"name,omitempty"`
	// Match selects the containers that the rule applies to; all keys that are set must match.
	Match Match `json:"match"`
	// Memlock replaces the general memlock; it can also be unchanged, which sets no limit.
	Memlock Scalar `json:"memlock,omitempty"`
	// IPCLock replaces the general ipcLock.
	IPCLock Scalar `json:"ipcLock,omitempty"`
	// Inject replaces the general selectors. It opens no namespace.
	Inject *RuleInject `json:"inject,omitempty"`
}

// RuleInject selects the HCAs that are injected into the containers that a rule matches and that hold none.
type RuleInject struct {
	Selectors
	// Always injects them without being asked.
	Always bool `json:"always"`
}

// Match selects the containers that a rule applies to. A key that is omitted matches all; a list must not be empty.
type Match struct {
	// Namespaces are globs of namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// Resources are globs of resource names, one of which the container must hold. This also makes it an RDMA container.
	Resources []string `json:"resources,omitempty"`
}

// Default is the configuration that is in force if no other is given.
func Default() Config {
	return Config{
		Memlock: "unlimited",
		IPCLock: "true",
		OptIn: OptIn{Devices: true, Resources: []string{}, Namespaces: []string{},
			DeviceAnnotations: deviceAnnotations(), MOFEDRuntimeHandlers: []string{}},
		Inject: Inject{
			Namespaces: []string{},
			Selectors: Selectors{Names: []string{"*"}, Functions: []string{"physical"}, LinkLayers: []string{},
				Netdevs: []string{}, NUMANodes: []int{}},
		},
		SkipRuntimeHandlers: sandbox.Handlers(),
		Rules:               []Rule{},
	}
}
