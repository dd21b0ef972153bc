// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

// Config is the administrator's configuration, as it is written in /etc/rdma-spec/config.yaml. New turns it into a Policy.
type Config struct {
	// Memlock is the RLIMIT_MEMLOCK that an RDMA container gets: unlimited, memory-limit, or bytes such as 16Gi.
	Memlock Scalar `json:"memlock"`
	// IPCLock says whether an RDMA container gets CAP_IPC_LOCK: unless-dropped, true, false or force.
	IPCLock Scalar `json:"ipcLock"`
	// OptIn says what makes a container an RDMA container.
	OptIn OptIn `json:"optIn"`
	// Devices are the HCAs that an annotation can have injected.
	Devices Devices `json:"devices"`
	// Repair deals with containers that run below policy.
	Repair Repair `json:"repair"`
	// SkipRuntimeHandlers are globs of runtime handlers whose containers are left alone altogether.
	SkipRuntimeHandlers []string `json:"skipRuntimeHandlers"`
	// Rules set other values for the containers that they match; the first match wins.
	Rules []Rule `json:"rules"`
}

// OptIn says what makes a container an RDMA container.
type OptIn struct {
	// Devices: a container that holds a verbs device of the node is an RDMA container.
	Devices bool `json:"devices"`
	// Resources are globs of resource names, as in rdma/*; a container that holds such a resource is an RDMA container.
	Resources []string `json:"resources"`
	// OnKubeletError says what happens where the kubelet does not tell which resources a container holds: skip leaves the container
	// alone, fail refuses its creation.
	OnKubeletError string `json:"onKubeletError"`
	// Annotation says where an annotation counts.
	Annotation AnnotationOptIn `json:"annotation"`
	// NVIDIAMOFED says where the environment variable NVIDIA_MOFED=enabled counts: NVIDIA's runtime wrapper then injects verbs
	// devices after NRI, where no plugin can see them.
	NVIDIAMOFED MOFEDOptIn `json:"nvidiaMOFED"`
}

// AnnotationOptIn says where an annotation counts.
type AnnotationOptIn struct {
	// Namespaces are globs of the namespaces in which an annotation alone opts in and can have devices injected.
	Namespaces []string `json:"namespaces"`
}

// MOFEDOptIn says where the environment variable NVIDIA_MOFED=enabled counts.
type MOFEDOptIn struct {
	// RuntimeHandlers are globs of the runtime handlers that run NVIDIA's wrapper.
	RuntimeHandlers []string `json:"runtimeHandlers"`
}

// Devices selects HCAs. An HCA passes where its name passes, its NUMA node passes, and one of its ports passes both as to
// link layer and as to netdev. An empty list passes all, but for Names, where it passes none.
type Devices struct {
	// Names are globs of HCA names.
	Names []string `json:"names"`
	// LinkLayers are InfiniBand, Ethernet, or both.
	LinkLayers []string `json:"linkLayers"`
	// Netdevs are globs of network interface names.
	Netdevs []string `json:"netdevs"`
	// NUMANodes are numbers of NUMA nodes.
	NUMANodes []int `json:"numaNodes"`
	// Management adds the HCA's umad and issm devices, with which a process can disturb the whole fabric.
	// Only a rule that names namespaces may say so.
	Management bool `json:"management"`
}

// Repair deals with containers that run below policy.
type Repair struct {
	// Mode is off, report or fix. YAML takes an off without quotes for false, which is off as well.
	Mode Scalar `json:"mode"`
	// Every is the time between two passes, as in 30s.
	Every string `json:"every"`
}

// Rule sets other values for the containers that it matches.
type Rule struct {
	// Name is what logs, metrics and explain call the rule; rules[N] without one.
	Name string `json:"name,omitempty"`
	// Match says which containers the rule is about; all that is given must match.
	Match Match `json:"match"`
	// Memlock replaces the general memlock.
	Memlock Scalar `json:"memlock,omitempty"`
	// IPCLock replaces the general ipcLock.
	IPCLock Scalar `json:"ipcLock,omitempty"`
	// Devices has devices injected: into a container that holds no verbs device yet all that its selectors pass, unless its annotation
	// asks for less. A selector that is left out is the general one.
	Devices *Devices `json:"devices,omitempty"`
	// Deny refuses every RDMA container that the rule matches.
	Deny bool `json:"deny,omitempty"`
	// Message is said to who is denied.
	Message string `json:"message,omitempty"`
}

// Match says which containers a rule is about. What is left out matches all; what is there may not be empty.
type Match struct {
	// Namespaces are globs of namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// Resources are globs of resource names, one of which the container must hold. That makes it an RDMA container, too.
	Resources []string `json:"resources,omitempty"`
	// RuntimeHandlers are globs of runtime handlers.
	RuntimeHandlers []string `json:"runtimeHandlers,omitempty"`
	// Labels are labels that the pod must have. The pod's author chooses them.
	Labels map[string]string `json:"labels,omitempty"`
}

// Default is the configuration that is in force where no other is given.
func Default() Config {
	return Config{
		Memlock: "unlimited",
		IPCLock: "unless-dropped",
		OptIn: OptIn{
			Devices:        true,
			Resources:      []string{},
			OnKubeletError: "skip",
			Annotation:     AnnotationOptIn{Namespaces: []string{}},
			NVIDIAMOFED:    MOFEDOptIn{RuntimeHandlers: []string{}},
		},
		Devices:             anyDevice(),
		Repair:              Repair{Mode: "report", Every: "30s"},
		SkipRuntimeHandlers: []string{"kata*", "runsc*"},
		Rules:               []Rule{},
	}
}

func anyDevice() Devices {
	return Devices{Names: []string{"*"}, LinkLayers: []string{}, Netdevs: []string{}, NUMANodes: []int{}}
}
