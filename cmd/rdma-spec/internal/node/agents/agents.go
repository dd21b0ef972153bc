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
	PID  int    `json:"pid"`            // 0 if no kubelet is running
	Unit string `json:"unit,omitempty"` // the kubelet's systemd unit; "" if unknown
	Root string `json:"root,omitempty"` // the kubelet's --root-dir
	// DevicePlugins and PodResources report whether the kubelet's sockets exist under its root.
	DevicePlugins bool `json:"devicePlugins"`
	PodResources  bool `json:"podResources"`
	// NotMounted means that the directory of the device plugins' socket is missing. In a container, the directory exists
	// only if the container mounts the directory.
	NotMounted bool `json:"notMounted,omitempty"`
	// Error is why the pod resources API does not respond. Late means that the API did not respond in time.
	Error string `json:"error,omitempty"`
	Late  bool   `json:"late,omitempty"`
	// Allocatable counts each resource's devices that the kubelet can allocate, by resource name. The count is 0 for a
	// resource that device plugins or pods of this node had before and that has no devices now.
	Allocatable map[string]int `json:"allocatable,omitempty"`
	// Given lists the RDMA resources of each container that has any, by NAMESPACE/POD/CONTAINER. In a support bundle, the
	// listing contains these resources.
	Given map[string][]string `json:"-"`
	// Functions lists the PCI functions that device plugins allocated to containers, with the keys of Given.
	Functions map[string][]Function `json:"-"`
}

// Function is a PCI function that was allocated to a container as a resource.
type Function struct {
	Resource string `json:"resource"`
	PCI      string `json:"pci"`
}

// Injecting maps the program names of NRI plugins to pod annotations. Each plugin injects the devices that its
// annotation lists.
var Injecting = map[string]string{
	"device_injector":      "devices.gke.io",    // GKE's
	"nvidia-ctk-installer": "nvidia.cdi.k8s.io", // NVIDIA's container toolkit, in NRI mode
	"device-injector":      "devices.noderesource.dev",
}

// Conflicting lists NRI plugins that set the rlimits and devices that pods request.
var Conflicting = []string{"ulimit-adjuster", "device-injector"}

// PluginName is the name of the plugin's program.
const PluginName = "nri-rdma"

// Plugin describes the plugin's installation and its processes.
type Plugin struct {
	Unit      bool            `json:"unit"`               // systemd has the plugin's unit
	Launched  string          `json:"launched,omitempty"` // the file that the runtime launches
	Processes []PluginProcess `json:"processes,omitempty"`
	Policy    PolicyInForce   `json:"policy"`
	Tool      string          `json:"tool,omitempty"` // the version of rdma-spec that read the state
}

// PluginProcess is a process of an NRI plugin.
type PluginProcess struct {
	Name        string    `json:"name"` // nri-rdma, or a plugin of Injecting or Conflicting
	PID         int       `json:"pid"`
	InContainer bool      `json:"inContainer,omitempty"` // the process belongs to a DaemonSet, not to a service
	Validator   bool      `json:"validator,omitempty"`   // the process is nri-rdma --validate
	Started     time.Time `json:"started"`
	Replaced    bool      `json:"replaced,omitempty"`    // the program was replaced after the process started
	Config      string    `json:"config,omitempty"`      // the process's configuration file
	ConfigError string    `json:"configError,omitempty"` // why the configuration file is invalid
	// Handover is the node's directory through which the process hands over to its replacement; "" if it has no such
	// directory. Processes with the same directory are one plugin. During an update of a DaemonSet, two such processes
	// run, and only one of them is registered.
	Handover string `json:"handover,omitempty"`
}

// PolicyInForce describes the file to which the registered plugin writes its policy.
type PolicyInForce struct {
	Exists bool   `json:"exists"`
	Lives  bool   `json:"lives"` // the plugin that wrote the file is running
	Source string `json:"source,omitempty"`
	// Version is the version of the plugin that wrote the file; "" if the file does not contain the version.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"` // why the file cannot be used; "" if only its writer has exited
}

// Own returns the plugin's processes without the validator's processes.
func (p Plugin) Own() []PluginProcess {
	return slices.DeleteFunc(slices.Clone(p.Processes),
		func(q PluginProcess) bool { return q.Name != PluginName || q.Validator })
}

// Installed reports whether the node is meant to have the plugin.
func (p Plugin) Installed() bool {
	return p.Unit || p.Launched != "" || len(p.Own()) > 0 || p.Policy.Exists
}
