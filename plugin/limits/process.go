// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Membership reports whether a process belongs to a container. read returns the text of a file in the process's
// /proc/PID.
type Membership func(read func(name string) ([]byte, error)) bool

// inContainer is membership of the container with an ID, as its cgroup's name has it.
func inContainer(id string) Membership {
	return func(read func(name string) ([]byte, error)) bool {
		text, err := read("cgroup")
		return err == nil && containerOf(text) == id
	}
}

func (p *Processes) is(pid int, member Membership) bool {
	return member(func(name string) ([]byte, error) { return p.kernel.Read(pid, name) })
}

// RaiseOne raises RLIMIT_MEMLOCK of one process to at least what is wanted, if the process is low and belongs to a
// container. The error is ErrGone if there is no such process.
//
// As long as the process that is held has its ID, all that was asked and done by that ID was about that process. So
// that is asked last: if the process has ended meanwhile, a stranger may have its ID, and is set back.
func (p *Processes) RaiseOne(pid int, want spec.Limit, member Membership) (raised bool, err error) {
	process, err := p.kernel.Open(pid)
	if err != nil {
		return false, err
	}
	defer process.Close()
	if !p.is(pid, member) {
		return false, nil
	}
	current, err := p.Memlock(pid)
	if !process.Holds() {
		return false, ErrGone
	}
	if err != nil {
		return false, err
	}
	given, low := current.Raise(want)
	if !low {
		return false, nil
	}
	former, err := p.kernel.Set(pid, given)
	if err != nil {
		return false, err
	}
	if !process.Holds() {
		return false, p.setBack(pid, member, given, former)
	}
	return true, nil
}

// setBack gives the former limit back to whoever has the ID of a process that ended while it was given another one: to
// a stranger that has the given limit. The error is ErrGone where no stranger has it any more.
func (p *Processes) setBack(pid int, member Membership, given, former spec.Rlimit) error {
	process, err := p.kernel.Open(pid)
	if errors.Is(err, ErrThread) { // the limit that was set is its process's
		if pid, err = p.processOf(pid); err == nil {
			process, err = p.kernel.Open(pid)
		}
	}
	if err == nil {
		defer process.Close()
		var current spec.Rlimit
		current, err = p.Memlock(pid)
		keeps := err == nil && (current != given || p.is(pid, member))
		if keeps || !process.Holds() {
			return ErrGone
		}
	}
	if err == nil {
		_, err = p.kernel.Set(pid, former)
	}
	if err == nil || errors.Is(err, ErrGone) {
		return ErrGone
	}
	return fmt.Errorf("process %d reused the ID of a process that ended, so its limit was raised, and it cannot be "+
		"set back from %s to %s: %w",
		pid, given.Soft, former.Soft, err)
}

// Belongs reports whether a process is one of a container's, given by its ID.
func (p *Processes) Belongs(pid int, id string) bool {
	return p.is(pid, inContainer(id))
}

// processOf returns the process that a thread belongs to.
func (p *Processes) processOf(thread int) (pid int, err error) {
	status, err := p.kernel.Read(thread, "status")
	if err != nil {
		return 0, err
	}
	id, err := numberAfter(status, "Tgid:", 10, 31)
	return int(id), err
}
