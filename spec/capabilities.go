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
	// BaseSets are those that a base spec can give: CRI clears inheritable and ambient.
	BaseSets = CapabilitySets{"bounding", "effective", "permitted"}
	// AllSets make a capability hold for users other than root and for every exec: a stored spec can give them.
	AllSets = CapabilitySets{"bounding", "effective", "permitted", "inheritable", "ambient"}
)

// defaultCapabilities are those that containerd and CRI-O give a container whose author sets none
// (containerd, pkg/oci, defaultUnixCaps).
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// DroppedAll reports whether a bounding set looks like that of a container whose author dropped all capabilities: fewer
// than half of the runtime's default ones are left. A spec does not record what was dropped, only what is left; `drop:
// [ALL]` with some added back is recognised, a `drop: [NET_RAW]` is not mistaken for it, and a lone `drop: [IPC_LOCK]`
// cannot be seen at all, since IPC_LOCK is not a default capability.
func DroppedAll(bounding []string) bool {
	left := 0
	for _, c := range defaultCapabilities {
		if slices.Contains(bounding, c) {
			left++
		}
	}
	return 2*left < len(defaultCapabilities)
}

// BoundingSet returns the capabilities of a container whose securityContext adds and drops some, as far as DroppedAll
// and IPC_LOCK need them, that is, ALL adds no others. containerd and CRI-O alike compare names case-insensitively,
// drop after they add, and take ALL first (containerd, internal/cri/opts, WithCapabilities; CRI-O, setupCapabilities).
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

// Adds reports whether CAP_IPC_LOCK is added to a container with the given bounding set.
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

// addIPCLock adds CAP_IPC_LOCK to the named sets of process.capabilities that do not have it.
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

// hasIPCLock reports whether CAP_IPC_LOCK is in all of the named sets of process.capabilities.
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

// names gives the strings of the array that stands at a key, as their text and decoded.
func names(o *object, key string) (texts []json.RawMessage, decoded []string, err error) {
	if texts, err = o.list(key); err != nil {
		return nil, nil, err
	}
	if len(texts) > 0 && json.Unmarshal(o.get(key), &decoded) != nil {
		return nil, nil, typeError(o.join(key), "an array of names")
	}
	return texts, decoded, nil
}
