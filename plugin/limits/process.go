// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Membership reports whether a process belongs to a container. Membership calls read for the text of a file in the
// process's /proc/PID.
type Membership func(read func(name string) ([]byte, error)) bool

// inContainer returns a Membership that checks the names of cgroups for a container ID.
func inContainer(id string) Membership {
	return func(read func(name string) ([]byte, error)) bool {
		text, err := read("cgroup")
		return err == nil && containerOf(text) == id
	}
}

func (p *Processes) isMember(pid int, member Membership) bool {
	return member(func(name string) ([]byte, error) { return p.kernel.Read(pid, name) })
}

// RaiseOne raises the RLIMIT_MEMLOCK of one process to at least the wanted limit, if the process belongs to a container
// and the process's limit is lower. The error is ErrGone if the process does not exist.
//
// While the held process has its ID, every operation with that ID applies to the held process. RaiseOne therefore
// checks last whether the process still has its ID. If the process has ended, another process might have the ID, and
// RaiseOne restores that process's limit.
func (p *Processes) RaiseOne(pid int, want spec.Limit, member Membership) (raised bool, err error) {
	process, err := p.kernel.Open(pid)
	if err != nil {
		return false, err
	}
	defer process.Close()
	if !p.isMember(pid, member) {
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

// setBack restores the former limit if the process ended while its limit was being raised, and another process with the
// same ID got the new limit. The error is ErrGone if no other process has the new limit.
func (p *Processes) setBack(pid int, member Membership, given, former spec.Rlimit) error {
	process, err := p.kernel.Open(pid)
	if errors.Is(err, ErrThread) { // the limit was set for the thread's process
		if pid, err = p.processOf(pid); err == nil {
			process, err = p.kernel.Open(pid)
		}
	}
	if err == nil {
		defer process.Close()
		var current spec.Rlimit
		current, err = p.Memlock(pid)
		keeps := err == nil && (current != given || p.isMember(pid, member))
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
	return fmt.Errorf("the limit of process %d was raised by mistake, because its ID previously belonged to another "+
		"process: cannot restore the limit from %s to %s: %w", pid, given.Soft, former.Soft, err)
}

// Belongs reports whether a process belongs to the container with the given ID.
func (p *Processes) Belongs(pid int, id string) bool {
	return p.isMember(pid, inContainer(id))
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
