// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"github.com/rdma-spec/rdma-spec/spec"
)

// Memlocks reads limits of processes. limits.Processes does.
type Memlocks interface {
	// Memlock reads RLIMIT_MEMLOCK of a process.
	Memlock(pid int) (spec.Rlimit, error)
}

// Reading is the memlock of all processes of a container, and of its spec. rdma-spec status, repair and doctor judge by
// it.
type Reading struct {
	Processes []Limited // those that could be read; none where processes cannot be seen
	Spec      spec.Rlimit
	SpecRead  bool // what the spec says is known
	SpecSets  bool // the spec sets memlock, to Spec; where it does not, processes of execs have the runtime's own limit
}

// Limited is one process of a container.
type Limited struct {
	PID     int
	Memlock spec.Rlimit
}

// ReadMemlock reads the processes of a container. Those that have ended are left out.
func ReadMemlock(from Memlocks, pids []int) Reading {
	var r Reading
	for _, pid := range pids {
		if limit, err := from.Memlock(pid); err == nil {
			r.Processes = append(r.Processes, Limited{pid, limit})
		}
	}
	return r
}

// WithSpec adds what the container's spec sets, to the reading; sets is false where it sets no memlock.
func (r Reading) WithSpec(memlock spec.Rlimit, sets bool) Reading {
	r.Spec = memlock
	r.SpecRead = true
	r.SpecSets = sets
	return r
}

// Low counts the processes that have less than is wanted.
func (r Reading) Low(want spec.Limit) int {
	low := 0
	for _, p := range r.Processes {
		if p.Memlock.Soft < want {
			low++
		}
	}
	return low
}

// Lowest returns the lowest soft and the lowest hard limit of the processes, which need not be of one process; where no
// process was read, what the spec sets. It is false where neither is known.
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

// Given returns the soft limit that the container was given, whatever its program has made of it; known is false where
// neither processes nor a spec can be read.
//
// Where the spec sets one, it is that: processes with less have lowered their own. Where the spec sets none, processes
// have the runtime's limit. Where the spec is not known, a program may have lowered the soft limit alone, as far as the
// hard one shows.
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
