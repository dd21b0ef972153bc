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

// SecondLookAfter is the delay before processes with low limits are read a second time. A runtime puts an exec process
// into the container's cgroup just before it sets the limits. Tests set the delay to zero.
var SecondLookAfter = time.Second

// readRegistering determines the amount of memory that a container can register. This amount is the lowest among the
// processes with an open verbs device, or else the amount of the first process.
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

// leastRegistering returns the process of a container that can register the least memory. The result is empty if all
// processes have exited.
func (s *surveyor) leastRegistering(id string, pids []int) (found Registering) {
	for _, pid := range pids {
		p, err := s.processes.Process(pid)
		if err != nil || !s.processes.Belongs(pid, id) {
			continue // the process has exited
		}
		if n := p.Registers(); found.Registers == nil || n < *found.Registers {
			found = Registering{PID: pid, User: process.Process{PID: pid}.User(s.root), Registers: &n, Memlock: p.Memlock,
				files: p.Files}
		}
	}
	return found
}

// limits reads the limits of a container's processes, and the limits in its spec.
func (s *surveyor) limits(r *Container, has cri.Spec) {
	r.reading = process.ReadMemlock(s.processes, s.running[r.ID]).WithSpec(has.Memlock, has.MemlockKnown)
	switch {
	case s.hidden != nil:
		s.note(s.hidden.Error())
	case len(r.reading.Processes) == 0:
		r.Notes = append(r.Notes, fmt.Sprintf("process %d of the container is not visible", r.PID))
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
		r.Notes = append(r.Notes, "the memlock shown is from the container's spec")
	}
}

// judge compares containers with their grants. A limit counts as low only if a second read confirms the low value.
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

// readAgain rereads the processes of a container whose limits are below the grant. It ignores new processes, because
// the runtime might not have set their limits yet.
func (s *surveyor) readAgain(r *Container) {
	var again []process.Limited
	for _, p := range r.reading.Processes {
		if p.Memlock.Soft < r.Wanted.Memlock {
			limit, err := s.processes.Memlock(p.PID)
			if err != nil || !s.processes.Belongs(p.PID, r.ID) {
				continue // the process has exited
			}
			p.Memlock = limit
		}
		again = append(again, p)
	}
	r.reading.Processes = again
}
