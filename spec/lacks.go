// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import "github.com/rdma-spec/rdma-spec/spec/hca"

// Has describes the limits, capabilities, and devices of a container, for comparison with a Grant.
type Has struct {
	// Memlock is the container's soft RLIMIT_MEMLOCK, in bytes.
	Memlock Limit
	// IPCLock is true if the container has CAP_IPC_LOCK.
	IPCLock bool
	// Bounding is the container's bounding set, which determines whether a grant adds CAP_IPC_LOCK; see IPCLock.Adds.
	Bounding []string
	// Holds reports whether the container has a device. If Holds is nil, Lacks does not compare devices.
	Holds func(hca.Device) bool
}

// Lacks returns the part of the grant that a container lacks. If the container has the whole grant, Lacks returns the
// zero Grant. All code that compares a container with its grant uses Lacks.
func (g Grant) Lacks(has Has) (lacks Grant) {
	if has.Memlock < g.Memlock {
		lacks.Memlock = g.Memlock
	}
	if !has.IPCLock && g.IPCLock.Adds(has.Bounding) {
		lacks.IPCLock = g.IPCLock
	}
	if has.Holds == nil {
		return lacks
	}
	for _, d := range g.Devices {
		if !has.Holds(d) {
			lacks.Devices = append(lacks.Devices, d)
		}
	}
	return lacks
}
