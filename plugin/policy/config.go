// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"

// ConfigFile is the default path of the configuration.
const ConfigFile = "/etc/rdma-spec/config.yaml"

// Config is the administrator's configuration, which is written in /etc/rdma-spec/config.yaml. New turns it into a
// Policy.
type Config struct {
	// Memlock is the RLIMIT_MEMLOCK that an RDMA container gets: unlimited, memory-limit, or a number of bytes, such as
	// 16Gi. If the memory limit exceeds the node's memory, memory-limit means the node's memory.
	Memlock Scalar `json:"memlock"`
	// IPCLock determines whether an RDMA container gets CAP_IPC_LOCK: true (unless its author dropped all capabilities),
	// false, requested (only if the pod's spec adds it; users other than root then get it as well), or always (even if the
	// author dropped all capabilities or memlock is finite). The capability overrides any finite memlock, so always is the
	// only value that grants it if memlock is not unlimited.
	IPCLock Scalar `json:"ipcLock"`
	// OptIn sets what makes a container an RDMA container.
	OptIn OptIn `json:"optIn"`
	// Inject selects the HCAs that are injected into containers without HCAs, and the namespaces where an annotation can
	// request them.
	Inject Inject `json:"inject"`
	// SkipRuntimeHandlers are globs of runtime handlers whose containers the plugin leaves unchanged; "" stands for pods
	// without a RuntimeClass.
	SkipRuntimeHandlers []string `json:"skipRuntimeHandlers"`
	// Rules set other values for the containers that they match; the first match wins.
	Rules []Rule `json:"rules"`
}

// OptIn sets what makes a container an RDMA container.
type OptIn struct {
	// Devices determines whether a container that has one of the node's verbs devices is an RDMA container.
	Devices bool `json:"devices"`
	// Resources are globs of resource names, such as rdma/*. A container to which the kubelet allocated such a resource is
	// an RDMA container.
	Resources []string `json:"resources"`
	// Namespaces are globs of the namespaces in which an annotation alone makes a container an RDMA container.
	Namespaces []string `json:"namespaces"`
	// DeviceAnnotations are annotation keys, without a scope, such as devices.gke.io. With such an annotation, a pod's
	// author names devices that another NRI plugin injects. If an annotation names a verbs device, the container is an
	// RDMA container only if pods in its namespace can opt in by annotation, or if the kubelet allocated an HCA to the
	// container.
	DeviceAnnotations []string `json:"deviceAnnotations"`
	// MOFEDRuntimeHandlers are globs of runtime handlers, such as nvidia*. If a container with such a handler has
	// NVIDIA_MOFED=enabled in its environment, it is an RDMA container, because NVIDIA's container runtime injects HCAs
	// after NRI plugins run. An image can set the variable. "" stands for pods without a RuntimeClass.
	MOFEDRuntimeHandlers []string `json:"mofedRuntimeHandlers"`
}

// Inject selects the HCAs that are injected into containers without HCAs.
type Inject struct {
	// Namespaces are globs of the namespaces in which an annotation can request HCAs. In these namespaces, pods can also
	// opt in by annotation.
	Namespaces []string `json:"namespaces"`
	Selectors
}

// Selectors select HCAs. An HCA is selected if its name, its function, and its NUMA node match, and one of its ports
// matches in both link layer and netdev. An empty list of link layers, netdevs, or NUMA nodes matches all.
type Selectors struct {
	// Names are globs of HCA names.
	Names []string `json:"names"`
	// Functions are the types of functions: physical, virtual, or scalable. A device plugin may have allocated virtual and
	// scalable functions to another pod.
	Functions []string `json:"functions"`
	// LinkLayers are InfiniBand, Ethernet, or both.
	LinkLayers []string `json:"linkLayers"`
	// Netdevs are globs of network interface names.
	Netdevs []string `json:"netdevs"`
	// NUMANodes are the numbers of NUMA nodes; -1 stands for HCAs without a NUMA node.
	NUMANodes []int `json:"numaNodes"`
	// Management adds the HCA's umad and issm devices, with which a process can disrupt the whole fabric. Only a rule with
	// match.namespaces can set it.
	Management bool `json:"management"`
}

// Rule sets other values for the containers that it matches. For keys that a rule omits, the general values apply.
type Rule struct {
	// Name is the rule's name in logs, metrics, and explain. The default is rules[N].
	Name string `json:"name,omitempty"`
	// Match selects the containers that the rule applies to. A container must match all keys that are set.
	Match Match `json:"match"`
	// Memlock replaces the general memlock. It also allows the value unchanged, which sets no limit.
	Memlock Scalar `json:"memlock,omitempty"`
	// IPCLock replaces the general ipcLock.
	IPCLock Scalar `json:"ipcLock,omitempty"`
	// Inject replaces the general selectors. It does not allow annotations in additional namespaces.
	Inject *RuleInject `json:"inject,omitempty"`
}

// RuleInject selects the HCAs that are injected into the containers that a rule matches and that have no HCAs.
type RuleInject struct {
	Selectors
	// Always injects the HCAs even if no annotation requests them.
	Always bool `json:"always"`
}

// Match selects the containers that a rule applies to. An omitted key matches all containers; a list must not be empty.
type Match struct {
	// Namespaces are globs of namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// Resources are globs of resource names. The kubelet must have allocated one of these resources to the container,
	// which also makes it an RDMA container.
	Resources []string `json:"resources,omitempty"`
}

// Default returns the configuration that is in force if there is no other.
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
