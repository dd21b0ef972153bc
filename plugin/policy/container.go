// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Container contains the properties of a container that a decision depends on. Facts contains the facts that must be
// queried elsewhere.
type Container struct {
	Namespace      string `json:"namespace"`
	Pod            string `json:"pod"`
	Name           string `json:"name"`
	RuntimeHandler string `json:"runtimeHandler,omitempty"` // "" if the pod has no RuntimeClass
	// Annotations are the pod's annotations from the time when the pod's sandbox was created. The container's own
	// annotations are not included, because the kubelet and device plugins write them. See the function Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	HostNetwork bool              `json:"hostNetwork,omitempty"` // the container is in the host's network namespace

	Devices []Device `json:"devices,omitempty"` // injected by device plugins, CDI, and DRA drivers
	// Sandboxed is true if the container has its own kernel, according to the type of its runtime. See package sandbox.
	Sandboxed  bool `json:"sandboxed,omitempty"`
	AllDevices bool `json:"allDevices,omitempty"` // access to all of the host's devices, as in a privileged container
	// MOFED is true if the container's environment requests HCAs from NVIDIA's container runtime. See the function MOFED.
	MOFED       bool  `json:"mofed,omitempty"`
	MemoryLimit int64 `json:"memoryLimit,omitempty"` // bytes; 0 if the container has no memory limit
	// Injected is true if the policy injected all verbs devices of the container. The kubelet allocated no resource for
	// these devices, and the annotation requests no other devices.
	Injected bool `json:"injected,omitempty"`
	// Memlock is the container's current memlock, or zero if the runtime does not report it.
	Memlock spec.Rlimit `json:"memlock"`
}

// Allotted is a resource that the kubelet reports as allocated to containers.
type Allotted struct {
	Resource string `json:"resource"` // such as rdma/hca_shared_devices_a
	// Devices are the IDs that the device plugin assigned to the allocated devices. The IDs of SR-IOV devices are PCI
	// addresses.
	Devices []string `json:"devices,omitempty"`
}

// Device is a device that a container has before the policy injects devices.
type Device struct {
	Path  string `json:"path"`
	Type  string `json:"type"` // c, b, u, or p
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// AllDevices reports whether a device cgroup allows access to all devices, as for a privileged container. If several
// rules apply to all devices, the last of these rules decides.
func AllDevices(rules []specs.LinuxDeviceCgroup) bool {
	allowed := false
	every := func(n *int64) bool { return n == nil || *n < 0 }
	for _, r := range rules {
		if (r.Type == "" || r.Type == "a") && every(r.Major) && every(r.Minor) && strings.Contains(r.Access, "rw") {
			allowed = r.Allow
		}
	}
	return allowed
}

// MOFEDVariable is the name of the environment variable that the function MOFED reads, with an equals sign.
const MOFEDVariable = "NVIDIA_MOFED="

// MOFED reports whether an environment contains NVIDIA_MOFED=enabled, which requests HCAs from NVIDIA's container
// runtime. NVIDIA's container runtime injects the HCAs after NRI plugins run. If the variable is set several times, the
// last value applies, as in NVIDIA's container runtime.
func MOFED(environment []string) (enabled bool) {
	for _, variable := range environment {
		if value, found := strings.CutPrefix(variable, MOFEDVariable); found {
			enabled = value == "enabled" // guard: mofed-value, else true
		}
	}
	return enabled
}

// Facts contains facts about the node, and the kubelet's reports about a container. A decision depends on these facts
// in addition to the container's properties. A fact that requires a query is a function, which Decide calls only if the
// decision depends on the fact.
type Facts struct {
	// Resources returns the names of the resources that the kubelet allocated to the container, such as
	// rdma/hca_shared_devices_a. If the kubelet's answer does not cover the container, known is false, and names contains
	// only resources that are certainly allocated. For example, the answer does not cover an ordinary init container.
	// Decide calls Resources at most once. If the node has no kubelet, Resources is nil, and Decide acts as if the kubelet
	// had failed.
	Resources func() (names []string, known bool, err error)
	// PodHolds returns the resources that the kubelet allocated to the pod's containers, and whether one of these
	// containers has a resource claim. Decide calls PodHolds at most once, and only if the pod's annotation cannot make
	// this container an RDMA container. On a node without a kubelet, the error is ErrNoKubelet. If the pod's resources
	// cannot be queried, PodHolds is nil.
	PodHolds func() (held []Allotted, claims bool, err error)
	// Verbs returns the verbs device with the given device number, and whether this device exists. Decide calls Verbs for
	// the container's character devices.
	Verbs func(hca.Number) (hca.Device, bool, error)
	// HCAs returns the inventory of the node's HCAs. The inventory is stale if a device might have been added or removed
	// since the node was read. Decide calls HCAs at most once, and only if the container might get devices. See ReadNow.
	HCAs func() (node *hca.Inventory, stale bool, err error)
	// Known returns the known HCAs without waiting, even if they are stale. If no HCAs are known, Known or its result is
	// nil.
	Known func() *hca.Inventory
	// Startable returns the highest memlock with which the runtime can start a container. If this memlock is unknown,
	// Startable is nil or returns 0.
	Startable func() spec.Limit
	// ReadAgain rereads the node's HCAs. Decide calls ReadAgain at most once, and only if a device might have been added
	// or removed since the call of HCAs. If the HCAs cannot be reread, ReadAgain is nil.
	ReadAgain func() (node *hca.Inventory, stale bool, err error)
	// Memory is the size of the node's memory in bytes, or 0 if the size is unknown. A higher memory limit of a container
	// counts as this size.
	Memory int64
}

// ReadNow returns a function for Facts.HCAs that reads the node's HCAs during the decision. The HCAs are therefore
// never stale.
func ReadNow(read func() (*hca.Inventory, error)) func() (node *hca.Inventory, stale bool, err error) {
	return func() (*hca.Inventory, bool, error) {
		node, err := read()
		return node, false, err
	}
}

// Signal is the reason why a container is an RDMA container.
type Signal string

// The following constants are the values of Signal.
const (
	SignalNone        Signal = "none"
	SignalAnnotation  Signal = "annotation"  // the pod's author opted in, and the configuration allows the opt-in
	SignalDevice      Signal = "device"      // the container has one of the node's verbs devices
	SignalEnvironment Signal = "environment" // NVIDIA's runtime injects HCAs, and the configuration lists the handler
	SignalResource    Signal = "resource"    // the kubelet allocated a resource that the configuration lists
)

// Decision contains the grant of a container, or the reason why the container gets no grant. Logs, metrics, and the
// explain and status commands use the values of Decision.
type Decision struct {
	// Signal is what makes the container an RDMA container.
	Signal Signal `json:"signal"`
	// Evidence is the device, resource, annotation key, or environment variable that makes the container an RDMA
	// container.
	Evidence string `json:"evidence,omitempty"`
	// Rule is the name of the rule that applies. If no rule matches, the name is "default". If the applicable rule is
	// unknown, Rule lists all candidates.
	Rule string `json:"rule,omitempty"`

	// Grant contains the memlock, the capability, and the devices that the policy grants to the container.
	Grant *spec.Grant `json:"grant,omitempty"`
	// Refusal is the reason why the container cannot be created.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Reason explains why the container gets neither a grant nor a refusal. If nothing requested a grant, Reason is "".
	Reason string `json:"reason,omitempty"`
	// Authored is the key of the annotation in which the pod's author might have named the container's verbs device. Such
	// a device does not make the container an RDMA container. If no annotation affected the decision in this way, Authored
	// is "".
	Authored string `json:"authored,omitempty"`
	// Unknown is true if the kubelet did not report all resources of the container. The grant might therefore be too
	// small.
	Unknown bool `json:"unknown,omitempty"`
	// LeftOut are the HCAs that were excluded when all HCAs were requested. Each entry contains the HCA's name and the
	// reason, such as the state of its port or a fault.
	LeftOut []string `json:"leftOut,omitempty"`
	// Warnings are facts that an administrator should know but that do not change the decision.
	Warnings []string `json:"warnings,omitempty"`
}

// Refusal is the reason why a container cannot be created. Message is one line that describes the failure, its reason,
// and its fix.
type Refusal struct {
	// Cause is the reason for the refusal in one word.
	Cause Cause `json:"reason"`
	// Message is the error message that the runtime reports.
	Message string `json:"message"`
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Cause is a one-word reason for a refusal.
type Cause string

// The following constants are the values of Cause.
const (
	CauseUnreadable  Cause = "unreadable"   // the annotation is invalid
	CauseNamespace   Cause = "namespace"    // the policy does not allow the request in this namespace
	CauseCeiling     Cause = "ceiling"      // the annotation requests more than the policy grants
	CauseMemoryLimit Cause = "memory-limit" // memlock is memory-limit, but the container has no memory limit
	CauseHCA         Cause = "hca"          // the node's HCAs cannot be injected, or are not known
	CauseNoSuchHCA   Cause = "no-such-hca"  // the annotation requests an HCA that the container cannot use on this node
	CauseDevicePath  Cause = "device-path"  // the path of a device to inject is in use
	CauseKubelet     Cause = "kubelet"      // the kubelet did not report the container's resources
	CauseNoPolicy    Cause = "no-policy"    // the node has no valid configuration
)
