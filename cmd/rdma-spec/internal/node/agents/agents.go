// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agents reads the state of a node's agents: the plugin nri-rdma and its policy in force, and the kubelet. It
// does not judge the state; package doctor does.
package agents

import (
	"slices"
	"time"
)

// Kubelet is the node's kubelet.
type Kubelet struct {
	PID  int    `json:"pid"`            // 0 where none runs
	Unit string `json:"unit,omitempty"` // its systemd unit; "" where it is unknown
	Root string `json:"root,omitempty"` // its --root-dir
	// DevicePlugins and PodResources say whether its sockets exist, below its root.
	DevicePlugins bool `json:"devicePlugins"`
	PodResources  bool `json:"podResources"`
	// NotMounted means that not even the directory of the device plugins' socket is there: a container has it only if it
	// is mounted.
	NotMounted bool `json:"notMounted,omitempty"`
	// Error is why the pod resources API does not answer; Late means that it did not in time.
	Error string `json:"error,omitempty"`
	Late  bool   `json:"late,omitempty"`
	// Allocatable counts the devices of each resource that it could give away, by the resource's name. A resource that
	// device plugins or pods of this node have had and that has no device now is there with 0.
	Allocatable map[string]int `json:"allocatable,omitempty"`
	// Given are the resources with RDMA of each container that has some, by NAMESPACE/POD/CONTAINER. A copy has them of
	// the listing.
	Given map[string][]string `json:"-"`
	// Functions are the PCI functions that device plugins gave containers, as Given.
	Functions map[string][]Function `json:"-"`
}

// Function is a PCI function that a container was given as a resource.
type Function struct {
	Resource string `json:"resource"`
	PCI      string `json:"pci"`
}

// Injecting are NRI plugins that give a container the devices that annotations of its pod name, by the names of their
// programs: with the annotation.
var Injecting = map[string]string{
	"device_injector":      "devices.gke.io",    // GKE's
	"nvidia-ctk-installer": "nvidia.cdi.k8s.io", // NVIDIA's container toolkit, in NRI mode
	"device-injector":      "devices.noderesource.dev",
}

// Conflicting are NRI plugins that set the rlimits and devices that pods ask for.
var Conflicting = []string{"ulimit-adjuster", "device-injector"}

// PluginName is the program of the plugin.
const PluginName = "nri-rdma"

// Plugin is what is installed and runs of the plugin.
type Plugin struct {
	Unit      bool            `json:"unit"`               // systemd has its unit
	Launched  string          `json:"launched,omitempty"` // the file that the runtime launches
	Processes []PluginProcess `json:"processes,omitempty"`
	Policy    PolicyInForce   `json:"policy"`
	Tool      string          `json:"tool,omitempty"` // the version of the rdma-spec that looked
}

// PluginProcess is a process of an NRI plugin.
type PluginProcess struct {
	Name        string    `json:"name"` // nri-rdma, or one of those that set the same things
	PID         int       `json:"pid"`
	InContainer bool      `json:"inContainer,omitempty"` // it is not a service, but of a DaemonSet
	Validator   bool      `json:"validator,omitempty"`   // it is nri-rdma --validate
	Started     time.Time `json:"started"`
	Replaced    bool      `json:"replaced,omitempty"`    // its program was replaced since it started
	Config      string    `json:"config,omitempty"`      // its configuration file
	ConfigError string    `json:"configError,omitempty"` // why that file is not a configuration
	// Handover is the directory of the node where it meets the process that replaces it, "" if it has none. Those that
	// meet are one plugin: only one of them is registered, and during an update of a DaemonSet there are two.
	Handover string `json:"handover,omitempty"`
}

// PolicyInForce is the file that the registered plugin writes.
type PolicyInForce struct {
	Exists bool   `json:"exists"`
	Lives  bool   `json:"lives"` // the plugin that wrote it runs
	Source string `json:"source,omitempty"`
	// Version is the writer's; "" where it does not say.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"` // why it cannot be used; not that its writer has ended
}

// Own returns the processes of the plugin, without those of the validator.
func (p Plugin) Own() []PluginProcess {
	return slices.DeleteFunc(slices.Clone(p.Processes),
		func(q PluginProcess) bool { return q.Name != PluginName || q.Validator })
}

// Installed reports whether the node is meant to have the plugin.
func (p Plugin) Installed() bool {
	return p.Unit || p.Launched != "" || len(p.Own()) > 0 || p.Policy.Exists
}
