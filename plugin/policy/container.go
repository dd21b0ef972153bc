// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Container is the part of a container that a decision depends on. Facts contains what must be queried elsewhere.
type Container struct {
	Namespace      string `json:"namespace"`
	Pod            string `json:"pod"`
	Name           string `json:"name"`
	RuntimeHandler string `json:"runtimeHandler,omitempty"` // "" if the pod has no RuntimeClass
	// Annotations are the pod's, from when its sandbox was created. They are never the container's, which the kubelet and
	// device plugins write. See the function Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	HostNetwork bool              `json:"hostNetwork,omitempty"` // it is in the host's network namespace

	Devices []Device `json:"devices,omitempty"` // injected by device plugins, CDI, and DRA drivers
	// Sandboxed says that the container has its own kernel, which its runtime's type shows. See package sandbox.
	Sandboxed  bool `json:"sandboxed,omitempty"`
	AllDevices bool `json:"allDevices,omitempty"` // it can access all of the host's devices, like a privileged container
	// MOFED says that the container's environment requests HCAs from NVIDIA's container runtime. See the function MOFED.
	MOFED       bool  `json:"mofed,omitempty"`
	MemoryLimit int64 `json:"memoryLimit,omitempty"` // bytes; 0 if it has none
	// Injected says that the policy injected all of the container's verbs devices: the kubelet allocated no resource for
	// them, and the annotation requests no others.
	Injected bool `json:"injected,omitempty"`
	// Memlock is the container's limit, as far as it is known; zero if the runtime does not report it.
	Memlock spec.Rlimit `json:"memlock"`
}

// Allotted is a resource that the kubelet allocated to containers, as the kubelet reports it.
type Allotted struct {
	Resource string `json:"resource"` // such as rdma/hca_shared_devices_a
	// Devices are the IDs that the device plugin assigned to the allocated devices. With SR-IOV, they are PCI addresses.
	Devices []string `json:"devices,omitempty"`
}

// Device is a container's device, before the policy injects any.
type Device struct {
	Path  string `json:"path"`
	Type  string `json:"type"` // c, b, u, or p
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// AllDevices reports whether a device cgroup's last rule for all devices allows them, as it does for a privileged
// container.
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

// MOFEDVariable is the prefix of the environment variable that MOFED looks for.
const MOFEDVariable = "NVIDIA_MOFED="

// MOFED reports whether an environment requests HCAs from NVIDIA's container runtime, which injects them after NRI
// plugins run. The variable is NVIDIA_MOFED=enabled. If it is set several times, the last value applies, as it does in
// that runtime.
func MOFED(environment []string) (enabled bool) {
	for _, variable := range environment {
		if value, found := strings.CutPrefix(variable, MOFEDVariable); found {
			enabled = value == "enabled" // guard: mofed-value, else true
		}
	}
	return enabled
}

// Facts is what a decision depends on apart from the container: facts about the node, and what the kubelet reports
// about the container. Each fact that needs a call is a function, which Decide calls only if it has to.
type Facts struct {
	// Resources returns the names of the resources that the kubelet allocated to the container, such as
	// rdma/hca_shared_devices_a. Known is false if the kubelet's answer does not cover the container, as for an ordinary
	// init container; the names are then those that are certain. Decide calls it at most once. It is nil if there is no
	// kubelet; a decision that needs the answer is then made as if the kubelet had failed.
	Resources func() (names []string, known bool, err error)
	// PodHolds returns the resources that the kubelet allocated to the pod's containers, and whether one of them has a
	// resource claim. Decide calls it at most once, and only if the pod's annotation cannot make this container an RDMA
	// container. The error is ErrNoKubelet on a node without a kubelet. It is nil if there is nothing to query.
	PodHolds func() (held []Allotted, claims bool, err error)
	// Verbs reports whether a number is that of a verbs device. Decide calls it for each of the container's character
	// devices.
	Verbs func(hca.Number) (hca.Device, bool, error)
	// HCAs returns the node's HCAs. The node is stale if a device may have come or gone since it was read. Decide calls it
	// at most once, and only if the container may get devices. See ReadNow.
	HCAs func() (node *hca.Inventory, stale bool, err error)
	// Known returns the HCAs that are known, stale or not, without waiting. The function or its result is nil if none are
	// known.
	Known func() *hca.Inventory
	// Startable returns the highest memlock with which the runtime can start a container. It is nil or returns 0 if that
	// is unknown.
	Startable func() spec.Limit
	// ReadAgain reads the node's HCAs once more. Decide calls it at most once, and only if a device may have come or gone
	// since HCAs read them. It is nil if they cannot be read again.
	ReadAgain func() (node *hca.Inventory, stale bool, err error)
	// Memory is the node's memory in bytes, which caps a container's memory limit; 0 if it is unknown.
	Memory int64
}

// ReadNow returns Facts.HCAs of a program that reads the node's HCAs for the decision, so that they are not stale.
func ReadNow(read func() (*hca.Inventory, error)) func() (node *hca.Inventory, stale bool, err error) {
	return func() (*hca.Inventory, bool, error) {
		node, err := read()
		return node, false, err
	}
}

// Signal is why a container is an RDMA container.
type Signal string

// The signals.
const (
	SignalNone        Signal = "none"
	SignalAnnotation  Signal = "annotation"  // its author opted in where the configuration allows it
	SignalDevice      Signal = "device"      // it has one of this node's verbs devices
	SignalEnvironment Signal = "environment" // NVIDIA's runtime injects HCAs, and the configuration lists the handler
	SignalResource    Signal = "resource"    // it was allocated a resource that the configuration lists
)

// Decision is what a container gets, or why it gets nothing, in the words that logs, metrics, explain, and status use.
type Decision struct {
	// Signal is why the container is an RDMA container.
	Signal Signal `json:"signal"`
	// Evidence is the device, resource, or annotation key that is the signal.
	Evidence string `json:"evidence,omitempty"`
	// Rule is the rule that applies; "default" if none matches; all candidates if it is unknown which one applies.
	Rule string `json:"rule,omitempty"`

	// Grant is what the container gets.
	Grant *spec.Grant `json:"grant,omitempty"`
	// Refusal is why the container cannot be created.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Reason is why there is neither a grant nor a refusal; "" if nothing requested a grant.
	Reason string `json:"reason,omitempty"`
	// Authored is the annotation with which the pod's author may have named the verbs device, so that the device is not a
	// signal; "" if this made no difference.
	Authored string `json:"authored,omitempty"`
	// Unknown is true if the kubelet did not report all resources of the container, so that its grant may be too small.
	Unknown bool `json:"unknown,omitempty"`
	// LeftOut are the HCAs that were excluded when all HCAs were requested, each with the state of its port or its fault.
	LeftOut []string `json:"leftOut,omitempty"`
	// Warnings are facts that an administrator should know, and that do not change the decision.
	Warnings []string `json:"warnings,omitempty"`
}

// Refusal is why a container cannot be created. The message is one line that says what failed, why, and what to do.
type Refusal struct {
	// Cause is the reason in one word.
	Cause Cause `json:"reason"`
	// Message is the error that the runtime reports.
	Message string `json:"message"`
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Cause is the reason for a refusal, one word from a fixed set.
type Cause string

// The causes.
const (
	CauseUnreadable  Cause = "unreadable"   // the annotation is invalid
	CauseNamespace   Cause = "namespace"    // the policy does not allow the request in this namespace
	CauseCeiling     Cause = "ceiling"      // the annotation requests more than the policy grants
	CauseMemoryLimit Cause = "memory-limit" // memlock is the memory limit, but there is none
	CauseHCA         Cause = "hca"          // the node's HCAs cannot be injected, or are not known
	CauseNoSuchHCA   Cause = "no-such-hca"  // the annotation requests an HCA that the container cannot use on this node
	CauseDevicePath  Cause = "device-path"  // the path of a device to inject is in use
	CauseKubelet     Cause = "kubelet"      // the kubelet did not report the container's resources
	CauseNoPolicy    Cause = "no-policy"    // there is no valid configuration
)
