// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"slices"
	"strings"
)

// CapIPCLock is the capability's name in OCI runtime specs.
const CapIPCLock = "CAP_IPC_LOCK"

// CapabilitySets names sets of process.capabilities.
type CapabilitySets []string

var (
	// BaseSets are the sets that a base spec can set. CRI runtimes clear the inheritable and ambient sets.
	BaseSets = CapabilitySets{"bounding", "effective", "permitted"}
	// AllSets are the sets that make a capability effective for all users, not only for root, and for every exec. A
	// stored spec can set all of these sets.
	AllSets = CapabilitySets{"bounding", "effective", "permitted", "inheritable", "ambient"}
)

// defaultCapabilities are the capabilities that containerd and CRI-O give a container whose securityContext sets none
// (containerd, pkg/oci, defaultUnixCaps).
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// DroppedAll reports whether a container's author seems to have dropped all capabilities. DroppedAll returns true if
// the bounding set contains fewer than half of the runtime's default capabilities, because a spec records the remaining
// capabilities, but not the dropped capabilities. DroppedAll recognizes `drop: [ALL]` even if some capabilities were
// added back, and does not mistake `drop: [NET_RAW]` for `drop: [ALL]`. DroppedAll cannot detect `drop: [IPC_LOCK]`,
// because IPC_LOCK is not a default capability.
func DroppedAll(bounding []string) bool {
	left := 0
	for _, c := range defaultCapabilities {
		if slices.Contains(bounding, c) {
			left++
		}
	}
	return 2*left < len(defaultCapabilities)
}

// BoundingSet returns the bounding set of a container whose securityContext adds and drops these capabilities. For
// `add: [ALL]`, BoundingSet adds only the capabilities that DroppedAll and IPCLock.Adds need. containerd and CRI-O
// compare names case-insensitively, apply ALL first, and add capabilities before they drop capabilities (containerd,
// internal/cri/opts, WithCapabilities; CRI-O, setupCapabilities).
func BoundingSet(add, drop []string) []string {
	all := func(name string) bool { return strings.EqualFold(name, "ALL") }
	set := slices.Clone(defaultCapabilities)
	if slices.ContainsFunc(add, all) {
		set = append(set, CapIPCLock)
	}
	if slices.ContainsFunc(drop, all) {
		set = nil
	}
	for _, name := range add {
		set = append(set, "CAP_"+strings.ToUpper(name))
	}
	return slices.DeleteFunc(set, func(name string) bool {
		return slices.ContainsFunc(drop, func(dropped string) bool { return strings.EqualFold("CAP_"+dropped, name) })
	})
}

// Adds reports whether a Grant adds CAP_IPC_LOCK to a container with this bounding set.
func (mode IPCLock) Adds(bounding []string) bool {
	switch requested := slices.Contains(bounding, CapIPCLock); mode {
	case IPCLockIfRequested:
		return requested
	case IPCLockUnlessDropped:
		return requested || !DroppedAll(bounding)
	default:
		return mode == IPCLockYes
	}
}

// addIPCLock adds CAP_IPC_LOCK to each of the given sets of process.capabilities that lacks CAP_IPC_LOCK.
func addIPCLock(process *object, mode IPCLock, sets CapabilitySets) error {
	return process.edit("capabilities", func(capabilities *object) error {
		_, bounding, err := names(capabilities, "bounding")
		if err != nil {
			return err
		}
		if !mode.Adds(bounding) {
			return nil
		}
		for _, set := range sets {
			texts, present, err := names(capabilities, set)
			if err != nil {
				return err
			}
			if !slices.Contains(present, CapIPCLock) {
				capabilities.setList(set, append(texts, encode(CapIPCLock)))
			}
		}
		return nil
	})
}

// hasIPCLock reports whether all of the given sets of process.capabilities contain CAP_IPC_LOCK.
func hasIPCLock(process *object, sets CapabilitySets) (bool, error) {
	capabilities, err := process.child("capabilities")
	if err != nil {
		return false, err
	}
	for _, set := range sets {
		if _, present, err := names(capabilities, set); err != nil || !slices.Contains(present, CapIPCLock) {
			return false, err
		}
	}
	return true, nil
}

// names returns the strings in the array at a key, both as JSON text and decoded.
func names(o *object, key string) (texts []json.RawMessage, decoded []string, err error) {
	if texts, err = o.list(key); err != nil {
		return nil, nil, err
	}
	if len(texts) > 0 && json.Unmarshal(o.get(key), &decoded) != nil {
		return nil, nil, typeError(o.join(key), "an array of names")
	}
	return texts, decoded, nil
}
