// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Container is all that a decision about a container depends on.
type Container struct {
	Namespace, Pod, Name string
	RuntimeHandler       string            // "" where the pod has no RuntimeClass
	Annotations          map[string]string // the pod's, as they were when the sandbox was made; see Annotations
	HostNetwork          bool              // it is in the host's network namespace

	Devices     []Device // what device plugins, CDI and DRA drivers have given it
	AllDevices  bool     // it may use every device of the host, as privileged containers may
	MemoryLimit int64    // bytes; 0 where it has none

	// Resources gives the names of the resources that the container holds, in the words of the kubelet: rdma/hca_shared_devices_a.
	// Known is false where the kubelet's answer does not cover the container's resources, as those of an ordinary init container; the
	// names are then those that are certain. Decide calls it at most once. Nil where there is nobody to ask: what needs the answer is
	// then decided as if the kubelet had failed.
	Resources func() (names []string, known bool, err error)
}

// Device is a device of a container, before anything is injected.
type Device struct {
	Path         string
	Type         string // c, b, u or p
	Major, Minor int64
}

// Node gives what a decision depends on of the node.
type Node struct {
	// Verbs says whether a number is that of a verbs device; it is called for each character device of a container.
	Verbs func(hca.Number) (hca.Device, bool, error)
	// HCAs gives the inventory; it is called at most once, where devices are injected.
	HCAs func() (*hca.Node, error)
	// Memory is the node's memory in bytes: a container's memory limit above it counts as this much. 0 is not known.
	Memory int64
}

// LiveNode reads the RDMA devices below a root at once: "/" for the node itself.
func LiveNode(root string) Node {
	list := sync.OnceValues(func() (*hca.Node, error) { return hca.List(root) })
	return Node{
		Verbs: func(n hca.Number) (hca.Device, bool, error) {
			verbs, ok, err := hca.VerbsByNumber(root, n)
			if ok {
				if node, err := list(); err == nil {
					named, _ := node.Lookup(n)
					verbs.HCA = named.HCA
				}
			}
			return verbs, ok, err
		},
		HCAs:   func() (*hca.Node, error) { return hca.Scan(root) },
		Memory: LiveMemory(),
	}
}

// LiveMemory gives the node's memory in bytes, MemTotal; 0 where the kernel does not tell.
func LiveMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// Signal is why a container counts as an RDMA container.
type Signal string

// The signals.
const (
	SignalNone       Signal = "none"
	SignalAnnotation Signal = "annotation" // its author opted in where the configuration lets an annotation do so
	SignalDevice     Signal = "device"     // it holds a verbs device of this node
	SignalResource   Signal = "resource"   // it holds a resource that the configuration names
)

// Decision says what a container gets, or why it gets nothing, in the words of logs, metrics, explain and status.
type Decision struct {
	Signal   Signal `json:"signal"`
	Evidence string `json:"evidence,omitempty"` // what the signal was: a device, a resource, an annotation's key
	Rule     string `json:"rule,omitempty"`     // the rule that spoke; "default" where none matched; all candidates where nobody knows which

	Grant   *spec.Grant `json:"grant,omitempty"`
	Refusal *Refusal    `json:"refusal,omitempty"`
	// Reason says why there is neither a grant nor a refusal, where there is more to say than that nothing asked for one.
	Reason string `json:"reason,omitempty"`
	// Unknown: the container might hold resources that would make more of it, and the kubelet did not tell.
	Unknown bool `json:"unknown,omitempty"`
	// Warnings are what an administrator should know although the decision stands.
	Warnings []string `json:"warnings,omitempty"`
}

// Refusal is why a container's creation fails: one line that says what, why and what to do.
type Refusal struct {
	Cause   Cause  `json:"cause"`
	Message string `json:"message"`
}

// Error gives the message.
func (r *Refusal) Error() string { return r.Message }

// Cause is a refusal's cause, one word of a fixed set.
type Cause string

// The causes.
const (
	CauseUnreadable  Cause = "unreadable"   // the annotation cannot be read
	CauseNamespace   Cause = "namespace"    // the namespace may not have what the annotation asks for
	CauseCeiling     Cause = "ceiling"      // the annotation asks for more than the policy gives
	CauseMemoryLimit Cause = "memory-limit" // memlock follows the memory limit and there is none
	CauseHCA         Cause = "hca"          // no such HCA, or none that could be injected
	CauseDevicePath  Cause = "device-path"  // another device has the path of one that would be injected
	CauseKubelet     Cause = "kubelet"      // the kubelet did not tell which resources the container holds
	CauseNoPolicy    Cause = "no-policy"    // there is no configuration that could be read
)
