// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"github.com/rdma-spec/rdma-spec/spec"
)

// Memlocks reads the limits of processes. limits.Processes implements it.
type Memlocks interface {
	// Memlock reads RLIMIT_MEMLOCK of a process.
	Memlock(pid int) (spec.Rlimit, error)
}

// Reading contains the memlock of all processes of a container, and of its spec. rdma-spec status, repair, and doctor
// base their results on it.
type Reading struct {
	Processes []Limited // the readable processes; empty if processes are not visible
	Spec      spec.Rlimit
	SpecRead  bool // the spec is known
	SpecSets  bool // the spec sets memlock to Spec; otherwise, exec processes get the runtime's own limit
}

// Limited is one process of a container.
type Limited struct {
	PID     int
	Memlock spec.Rlimit
}

// ReadMemlock reads the processes of a container. It omits processes that have exited.
func ReadMemlock(from Memlocks, pids []int) Reading {
	var r Reading
	for _, pid := range pids {
		if limit, err := from.Memlock(pid); err == nil {
			r.Processes = append(r.Processes, Limited{pid, limit})
		}
	}
	return r
}

// WithSpec adds the memlock in the container's spec to the reading. sets is false if the spec does not set memlock.
func (r Reading) WithSpec(memlock spec.Rlimit, sets bool) Reading {
	r.Spec = memlock
	r.SpecRead = true
	r.SpecSets = sets
	return r
}

// Low counts the processes whose memlock is below want.
func (r Reading) Low(want spec.Limit) int {
	low := 0
	for _, p := range r.Processes {
		if p.Memlock.Soft < want {
			low++
		}
	}
	return low
}

// Lowest returns the lowest soft limit and the lowest hard limit of the processes, possibly from different processes.
// If no process was read, it returns the spec's limits. It returns false if both are unknown.
func (r Reading) Lowest() (spec.Rlimit, bool) {
	if len(r.Processes) == 0 {
		return r.Spec, r.SpecSets
	}
	lowest := r.Processes[0].Memlock
	for _, p := range r.Processes[1:] {
		lowest = spec.Rlimit{Soft: min(lowest.Soft, p.Memlock.Soft), Hard: min(lowest.Hard, p.Memlock.Hard)}
	}
	return lowest, true
}

// Given returns the soft limit with which the container was created, even if its program has changed the limit. known
// is false if the processes and the spec cannot be read.
//
// If the spec sets a limit, Given returns this limit. Processes with a lower limit have lowered it themselves. If the
// spec sets no limit, processes have the runtime's limit. If the spec is unknown, Given returns the hard limit, because
// a program might have lowered only the soft limit.
func (r Reading) Given() (limit spec.Limit, known bool) {
	lowest, known := r.Lowest()
	switch {
	case r.SpecSets:
		return r.Spec.Soft, true
	case r.SpecRead:
		return lowest.Soft, known
	}
	return lowest.Hard, known
}
