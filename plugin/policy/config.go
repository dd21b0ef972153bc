// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"

// ConfigFile is the default path of the configuration file.
const ConfigFile = "/etc/rdma-spec/config.yaml"

// Config is the administrator's configuration of nri-rdma. By default, the configuration is in
// /etc/rdma-spec/config.yaml.
type Config struct {
	// Memlock is the locked-memory limit (RLIMIT_MEMLOCK) of RDMA containers: "unlimited", "memory-limit", or a number of
	// bytes, such as 16Gi. The value "memory-limit" means the container's memory limit, but at most the size of the node's
	// memory.
	Memlock Scalar `json:"memlock"`
	// IPCLock determines which RDMA containers get CAP_IPC_LOCK. The value true selects all RDMA containers except those
	// that drop all capabilities. The value false selects none. The value "requested" selects the RDMA containers whose
	// pod spec adds CAP_IPC_LOCK, and makes the capability effective for users other than root. The value "always" selects
	// all RDMA containers, even if they drop all capabilities or have a finite memlock. CAP_IPC_LOCK overrides a finite
	// memlock, so the values true and "requested" grant CAP_IPC_LOCK only with an unlimited memlock.
	IPCLock Scalar `json:"ipcLock"`
	// OptIn sets the conditions under which a container is an RDMA container.
	OptIn OptIn `json:"optIn"`
	// Inject selects the HCAs that the plugin can inject into containers without an HCA, and the namespaces in which a
	// pod's annotation can request HCAs.
	Inject Inject `json:"inject"`
	// SkipRuntimeHandlers are globs that match runtime handlers. The plugin does not change containers with a matching
	// handler. The entry "" matches pods without a RuntimeClass.
	SkipRuntimeHandlers []string `json:"skipRuntimeHandlers"`
	// Rules override the configuration's general values for matching containers. If several rules match a container, the
	// first of these rules applies.
	Rules []Rule `json:"rules"`
}

// OptIn sets the conditions under which a container is an RDMA container.
type OptIn struct {
	// Devices determines whether a container with one of the node's verbs devices is an RDMA container.
	Devices bool `json:"devices"`
	// Resources are globs that match resource names, such as rdma/*. If the kubelet allocated a matching resource to a
	// container, the container is an RDMA container.
	Resources []string `json:"resources"`
	// Namespaces are globs that match the namespaces in which the annotation rdma.noderesource.dev is sufficient to make
	// a container an RDMA container.
	Namespaces []string `json:"namespaces"`
	// DeviceAnnotations are the keys of annotations, such as devices.gke.io, in which a pod's author can name devices that
	// another NRI plugin injects. The keys do not include the annotation's scope, such as /pod. If such an annotation
	// names a verbs device, the container is an RDMA container in only two cases: pods in the container's namespace can
	// opt in by annotation, or the kubelet allocated an HCA to the container.
	DeviceAnnotations []string `json:"deviceAnnotations"`
	// MOFEDRuntimeHandlers are globs that match runtime handlers, such as nvidia*. If a container with a matching handler
	// has NVIDIA_MOFED=enabled in its environment, the container is an RDMA container. The plugin checks the environment
	// because NVIDIA's container runtime injects HCAs after NRI plugins run. A container image can set the variable. The
	// entry "" matches pods without a RuntimeClass.
	MOFEDRuntimeHandlers []string `json:"mofedRuntimeHandlers"`
}

// Inject selects the HCAs that the plugin can inject into containers without an HCA.
type Inject struct {
	// Namespaces are globs that match the namespaces in which an annotation can request HCAs. Pods in matching namespaces
	// can also opt in by annotation.
	Namespaces []string `json:"namespaces"`
	Selectors
}

// Selectors select HCAs. The HCA's name, function, and NUMA node must match. In addition, at least one port of the HCA
// must match both the link layers and the netdevs. An empty list of link layers, netdevs, or NUMA nodes matches all
// HCAs.
type Selectors struct {
	// Names are globs that match the names of HCAs.
	Names []string `json:"names"`
	// Functions are the types of functions to select: physical, virtual, or scalable. A device plugin might have allocated
	// virtual and scalable functions to another pod.
	Functions []string `json:"functions"`
	// LinkLayers are the link layers to select: InfiniBand, Ethernet, or both. An empty list selects both.
	LinkLayers []string `json:"linkLayers"`
	// Netdevs are globs that match the names of network interfaces. An empty list matches all HCAs.
	Netdevs []string `json:"netdevs"`
	// NUMANodes are the numbers of the NUMA nodes to select. The number -1 selects HCAs without a NUMA node. An empty list
	// selects all HCAs.
	NUMANodes []int `json:"numaNodes"`
	// Management determines whether the plugin also injects the umad and issm devices of an HCA. A process with these
	// devices can disrupt the whole fabric. Only a rule with match.namespaces can set management to true.
	Management bool `json:"management"`
}

// Rule overrides general values of the configuration for the containers that the rule matches. If a rule omits a key,
// the general value of the key applies.
type Rule struct {
	// Name identifies the rule in logs, in metrics, and in the output of rdma-spec explain. The default name is rules[N],
	// where N is the index of the rule.
	Name string `json:"name,omitempty"`
	// Match selects the containers to which the rule applies. A container must match every key that is set.
	Match Match `json:"match"`
	// Memlock overrides the general memlock for the rule's containers. The additional value "unchanged" means that the
	// rule does not change a container's memlock.
	Memlock Scalar `json:"memlock,omitempty"`
	// IPCLock overrides the general ipcLock for the rule's containers.
	IPCLock Scalar `json:"ipcLock,omitempty"`
	// Inject overrides the general HCA selectors for the rule's containers. A rule cannot allow annotations in additional
	// namespaces to request HCAs.
	Inject *RuleInject `json:"inject,omitempty"`
}

// RuleInject selects the HCAs that the plugin can inject into containers that match the rule and have no HCA.
type RuleInject struct {
	Selectors
	// Always determines whether the plugin injects the selected HCAs even if no annotation requests HCAs.
	Always bool `json:"always"`
}

// Match selects the containers to which a rule applies. An omitted key matches all containers. A list must contain at
// least one glob.
type Match struct {
	// Namespaces are globs that match the namespaces of the rule's containers.
	Namespaces []string `json:"namespaces,omitempty"`
	// Resources are globs that match resource names. The kubelet must have allocated a matching resource to the container.
	// The resource also makes the container an RDMA container.
	Resources []string `json:"resources,omitempty"`
}

// Default returns the configuration that is in force if the administrator does not write a configuration.
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
