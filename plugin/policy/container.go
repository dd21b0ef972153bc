// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Container is what a decision depends on of the container itself. What has to be asked for is in Facts.
type Container struct {
	Namespace      string `json:"namespace"`
	Pod            string `json:"pod"`
	Name           string `json:"name"`
	RuntimeHandler string `json:"runtimeHandler,omitempty"` // "" where the pod has no RuntimeClass
	// Annotations are the pod's, as they were when the sandbox was made, and never the container's, which kubelet and
	// device plugins write; see Annotations.
	Annotations map[string]string `json:"annotations,omitempty"`
	HostNetwork bool              `json:"hostNetwork,omitempty"` // it is in the host's network namespace

	Devices []Device `json:"devices,omitempty"` // what device plugins, CDI and DRA drivers have given it
	// Sandboxed says that it has a kernel of its own, as its runtime's type shows; see package sandbox.
	Sandboxed  bool `json:"sandboxed,omitempty"`
	AllDevices bool `json:"allDevices,omitempty"` // it may use every device of the host, as privileged containers may
	// MOFED says that its environment asks NVIDIA's container runtime for HCAs; see MOFED.
	MOFED       bool  `json:"mofed,omitempty"`
	MemoryLimit int64 `json:"memoryLimit,omitempty"` // bytes; 0 where it has none
	// Injected says that its verbs devices are those that the policy injects: no resource of the kubelet's stands for
	// them, and they are all that the annotation asks for.
	Injected bool `json:"injected,omitempty"`
	// Memlock is what it has, as far as that is known; zero where the runtime does not say.
	Memlock spec.Rlimit `json:"memlock"`
}

// Allotted is a resource that containers hold, as the kubelet reports it.
type Allotted struct {
	Resource string `json:"resource"` // rdma/hca_shared_devices_a
	// Devices are the IDs that its device plugin has for what it allots: PCI addresses, with SR-IOV.
	Devices []string `json:"devices,omitempty"`
}

// Device is a device of a container, before anything is injected.
type Device struct {
	Path  string `json:"path"`
	Type  string `json:"type"` // c, b, u or p
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// AllDevices reports whether the last rule of a device cgroup for all devices allows them, as in a privileged
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

// MOFEDVariable begins the variable of an environment that MOFED looks for.
const MOFEDVariable = "NVIDIA_MOFED="

// MOFED reports whether an environment asks NVIDIA's container runtime to add HCAs, which it does after NRI: it has
// NVIDIA_MOFED=enabled. The last value counts, as for that runtime.
func MOFED(environment []string) (enabled bool) {
	for _, variable := range environment {
		if value, found := strings.CutPrefix(variable, MOFEDVariable); found {
			enabled = value == "enabled" // guard: mofed-value, else true
		}
	}
	return enabled
}

// Facts is what a decision depends on beside the container: of the node, and of the kubelet's word on the container.
// All that costs a call is a function, which Decide calls only if it has to.
type Facts struct {
	// Resources returns the names of the resources that the container holds, as the kubelet names them:
	// rdma/hca_shared_devices_a. Known is false where the kubelet's answer does not cover the container's resources, as
	// those of an ordinary init container; the names are then those that are certain. Decide calls it at most once. Nil if
	// there is no kubelet: a decision that needs the answer is then made as if the kubelet had failed.
	Resources func() (names []string, known bool, err error)
	// PodHolds returns the resources that the containers of the container's pod hold, and whether one of them has a
	// resource claim. Decide calls it at most once, where the pod's annotation cannot make this container an RDMA
	// container. The error is ErrNoKubelet on a node without one; nil if nobody can be asked.
	PodHolds func() (held []Allotted, claims bool, err error)
	// Verbs reports whether a number is that of a verbs device; it is called for each character device of a container.
	Verbs func(hca.Number) (hca.Device, bool, error)
	// HCAs returns the inventory; it is called at most once, where devices are injected.
	HCAs func() (*hca.Inventory, error)
	// Known returns the HCAs as they are known, stale or not, without waiting; nil, or no function, if none are.
	Known func() *hca.Inventory
	// Startable returns the highest memlock of a container that the runtime can start; 0, or no function, if that is
	// unknown.
	Startable func() spec.Limit
	// Again reads the inventory again; it is called at most once, where a device has come or gone since HCAs was read. Nil
	// if that cannot be.
	Again func() (*hca.Inventory, error)
	// Memory is the node's memory in bytes: a container's memory limit above it counts as this much. 0 means unknown.
	Memory int64
}

// Signal is why a container counts as an RDMA container.
type Signal string

// The signals.
const (
	SignalNone        Signal = "none"
	SignalAnnotation  Signal = "annotation"  // its author opted in where the configuration lets an annotation do so
	SignalDevice      Signal = "device"      // it holds a verbs device of this node
	SignalEnvironment Signal = "environment" // NVIDIA's runtime gives it HCAs, and the configuration names its handler
	SignalResource    Signal = "resource"    // it holds a resource that the configuration names
)

// Decision is what a container gets, or why it gets nothing, in the words of logs, metrics, explain and status.
type Decision struct {
	Signal   Signal `json:"signal"`
	Evidence string `json:"evidence,omitempty"` // what the signal was: a device, a resource, an annotation's key
	// the rule that applies; "default" if none matched; all candidates if it is unknown which applies
	Rule string `json:"rule,omitempty"`

	Grant   *spec.Grant `json:"grant,omitempty"`
	Refusal *Refusal    `json:"refusal,omitempty"`
	// Reason is why there is neither a grant nor a refusal; "" if nothing asked for one.
	Reason string `json:"reason,omitempty"`
	// Authored is the annotation by which the pod's author may have named the verbs device himself, which therefore is no
	// signal; "" where that made no difference.
	Authored string `json:"authored,omitempty"`
	// Unknown is true if the container might hold resources that give it more, and the kubelet did not report them.
	Unknown bool `json:"unknown,omitempty"`
	// LeftOut are the HCAs that all HCAs does not include, each with the state of its port or what is wrong with it.
	LeftOut []string `json:"leftOut,omitempty"`
	// Warnings are what an administrator should know although the decision stands.
	Warnings []string `json:"warnings,omitempty"`
}

// Refusal is why a container's creation fails: one line with what, why, and what to do.
type Refusal struct {
	Cause   Cause  `json:"cause"`
	Message string `json:"message"`
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Cause is a refusal's cause, one word of a fixed set.
type Cause string

// The causes.
const (
	CauseUnreadable  Cause = "unreadable"   // the annotation cannot be read
	CauseNamespace   Cause = "namespace"    // the policy does not allow the namespace what the annotation asks for
	CauseCeiling     Cause = "ceiling"      // the annotation asks for more than the policy gives
	CauseMemoryLimit Cause = "memory-limit" // memlock follows the memory limit and there is none
	CauseHCA         Cause = "hca"          // the node's HCAs cannot be injected, or are not known
	CauseNoSuchHCA   Cause = "no-such-hca"  // the annotation asks for an HCA that is not on the node, or out of reach
	CauseDevicePath  Cause = "device-path"  // another device has the path of one that would be injected
	CauseKubelet     Cause = "kubelet"      // the kubelet did not report which resources the container holds
	CauseNoPolicy    Cause = "no-policy"    // there is no configuration that can be read
)
