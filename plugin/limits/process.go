// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Membership reports whether a process belongs to a container. read returns the text of a file in the process's /proc/PID.
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

// RaiseOne raises RLIMIT_MEMLOCK of one process to at least what is wanted, if the process is low and belongs to a container. The error is
// ErrGone if there is no such process.
//
// As long as the pidfd's process holds its ID, all that was asked and done by that ID was about that process. So that is asked
// last; if it no longer holds it, a stranger may have been hit. To tell whether one was, the limit is raised in two steps, and
// first to a value that nobody else has.
func (p *Processes) RaiseOne(pid int, want spec.Limit, member Membership) (raised bool, err error) {
	process, err := p.kernel.Open(pid)
	if err != nil {
		return false, err
	}
	defer process.Close()
	if !p.is(pid, member) {
		return false, nil
	}
	current, err := memlock(p.kernel, pid)
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
	mark := markOf(current, given)
	former, err := p.kernel.Set(pid, mark)
	if err != nil {
		return false, err
	}
	if !process.Holds() {
		return false, p.undo(member, pid, change{before: former, after: mark})
	}
	former, err = p.kernel.Set(pid, given)
	if err != nil {
		return false, err
	}
	if former != mark && !process.Holds() {
		return false, p.undo(member, pid, change{before: former, after: given})
	}
	return true, nil
}

// markOf returns a limit between two others that nobody else has.
func markOf(current, given spec.Rlimit) spec.Rlimit {
	mark := given
	if between := given.Soft - current.Soft; between > 1 {
		mark.Soft -= 1 + rand.N(between-1) //nolint:gosec // it need only be rare
	}
	return mark
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
	return parseTGID(status)
}

// nobody is the membership of a container without processes.
func nobody(func(name string) ([]byte, error)) bool { return false }

// change is what happened to the limit of whoever had a process ID.
type change struct{ before, after spec.Rlimit }

// undo takes back a change that was made to the limit of whoever got the ID of a process that ended. It gives ErrGone when all is
// as it was.
func (p *Processes) undo(member Membership, pid int, made change) error {
	for made.before != made.after {
		left, err := p.setBack(member, pid, made)
		if err != nil {
			return fmt.Errorf("process %d got the ID of one that ended while it was raised, and its limit could not be set back from %s to %s: %w",
				pid, made.after.Soft, made.before.Soft, err)
		}
		if left != made { // setting back has hit yet another one, whose limit must be as it was in any case
			member = nobody
		}
		made = left
	}
	return ErrGone
}

// setBack takes back a change, and returns what is left to be taken back then. Whoever belongs to the container may keep it.
func (p *Processes) setBack(member Membership, pid int, made change) (left change, err error) {
	process, err := p.kernel.Open(pid)
	if errors.Is(err, ErrThread) { // the limit that was hit is its process's
		if pid, err = p.processOf(pid); err == nil {
			process, err = p.kernel.Open(pid)
		}
		if err != nil {
			return made, nil //nolint:nilerr // it has ended just now: look again
		}
	}
	if errors.Is(err, ErrGone) {
		return change{}, nil // whoever was hit has ended as well
	}
	if err != nil {
		return made, err
	}
	defer process.Close()
	current, err := memlock(p.kernel, pid)
	if err != nil || current != made.after || p.is(pid, member) {
		if process.Holds() {
			return change{}, nil // not one that was hit
		}
		return made, nil // look again
	}
	former, err := p.kernel.Set(pid, made.before)
	switch {
	case errors.Is(err, ErrGone):
		return change{}, nil
	case err != nil:
		return made, err
	case former == made.after || process.Holds():
		return change{}, nil
	}
	return change{before: former, after: made.before}, nil
}
