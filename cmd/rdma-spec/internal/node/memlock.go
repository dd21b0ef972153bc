// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec"
)

// SecondLookAfter is how long after the first look the processes that were low are read again. A runtime puts the
// process of an exec into the container's cgroup a moment before it sets the limits. Tests do not wait.
var SecondLookAfter = time.Second

// readRegistering finds how much memory a container can register: each process that has a verbs device open, else the
// first one. That with the least counts.
func (s *surveyor) readRegistering(r *Container) {
	r.Opened = nil
	var using []int
	for _, pid := range s.running[r.ID] {
		if opened := (process.Process{PID: pid}).Opened(s.root); len(opened) > 0 {
			r.Opened = append(r.Opened, opened...)
			using = append(using, pid)
		}
	}
	slices.Sort(r.Opened)
	r.Opened = slices.Compact(r.Opened)
	if len(using) == 0 {
		using = []int{r.PID}
		r.Idle = s.leastRegistering(r.ID, s.running[r.ID])
	}
	r.Least = s.leastRegistering(r.ID, using)
	r.Registers = r.Least.Registers
	switch {
	case r.Registers != nil:
		r.OpenFiles = &r.Least.files
	case r.reading.SpecSets && !slices.Contains(r.Bounding, spec.CapIPCLock):
		r.Registers = &r.reading.Spec.Soft
	}
	if r.Registers != nil {
		r.RegistersBytes = uint64(*r.Registers)
	}
}

// leastRegistering returns the process of a container that can register the least; none where all have ended.
func (s *surveyor) leastRegistering(id string, pids []int) (found Registering) {
	for _, pid := range pids {
		p, err := s.processes.Process(pid)
		if err != nil || !s.processes.Belongs(pid, id) {
			continue // it has ended
		}
		if n := p.Registers(); found.Registers == nil || n < *found.Registers {
			found = Registering{PID: pid, User: process.Process{PID: pid}.User(s.root), Registers: &n, Memlock: p.Memlock,
				files: p.Files}
		}
	}
	return found
}

// limits reads what a container's processes may lock, and its spec.
func (s *surveyor) limits(r *Container, has cri.Spec) {
	r.reading = process.ReadMemlock(s.processes, s.running[r.ID]).WithSpec(has.Memlock, has.MemlockKnown)
	switch {
	case s.hidden != nil:
		s.note(s.hidden.Error())
	case len(r.reading.Processes) == 0:
		r.Notes = append(r.Notes, fmt.Sprintf("its process %d is not visible", r.PID))
	default:
		first, err := s.processes.Process(r.PID)
		if err == nil && s.processes.Belongs(r.PID, r.ID) {
			effective := first.IPCLock && !first.UserNamespace
			r.IPCLock = &effective
			r.UserNamespace = first.UserNamespace
		}
	}
	s.readRegistering(r)
	if len(r.reading.Processes) == 0 && r.reading.SpecSets {
		r.Notes = append(r.Notes, "the memlock shown is from its spec")
	}
}

// judge compares what containers have with what they are given. A limit counts as low only if a second look finds it
// low as well.
func (s *surveyor) judge(ctx context.Context, containers []Container) {
	low := func(r *Container) bool { return r.Wanted != nil && r.reading.Low(r.Wanted.Memlock) > 0 }
	if slices.ContainsFunc(containers, func(r Container) bool { return low(&r) }) {
		s.processes.Pause(ctx, s.pause)
	}
	for i := range containers {
		r := &containers[i]
		if low(r) {
			s.readAgain(r)
		}
		if memlock, known := r.reading.Lowest(); known {
			r.Memlock = &memlock
		}
		if r.Wanted != nil {
			r.compare(s.Options)
		}
	}
}

// readAgain reads those processes of a container again that have less than is wanted. Others that were made meanwhile
// may be about to get their limits.
func (s *surveyor) readAgain(r *Container) {
	var again []process.Limited
	for _, p := range r.reading.Processes {
		if p.Memlock.Soft < r.Wanted.Memlock {
			limit, err := s.processes.Memlock(p.PID)
			if err != nil || !s.processes.Belongs(p.PID, r.ID) {
				continue // it has ended
			}
			p.Memlock = limit
		}
		again = append(again, p)
	}
	r.reading.Processes = again
}
