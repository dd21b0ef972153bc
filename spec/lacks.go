// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import "github.com/rdma-spec/rdma-spec/spec/hca"

// Has is what a container has of what a Grant gives.
type Has struct {
	// Memlock is the soft RLIMIT_MEMLOCK that it was given.
	Memlock Limit
	// IPCLock: it has CAP_IPC_LOCK.
	IPCLock bool
	// Bounding is its bounding set, on which it depends whether a grant adds CAP_IPC_LOCK; see IPCLock.Adds.
	Bounding []string
	// Holds reports whether it holds a device; nil: devices are not compared.
	Holds func(hca.Device) bool
}

// Lacks returns the part of a grant that a container lacks; the zero Grant if it lacks nothing. All that compares a
// container with its grant compares it here.
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
