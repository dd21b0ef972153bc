// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

const low, high, wanted = spec.Limit(64 << 10), spec.Limit(4 << 20), spec.Limit(1 << 20)

// fakeProcess is a process of a fakeKernel.
type fakeProcess struct {
	container string
	limit     spec.Rlimit
	original  spec.Rlimit
	leader    int // its process ID, where the table has it under a thread's
}

func aProcess(container string, limit spec.Limit) *fakeProcess {
	l := spec.Rlimit{Soft: limit, Hard: limit}
	return &fakeProcess{container: container, limit: l, original: l}
}

// leader is the ID of the process that threads belong to.
const leader = 9

// aThread is a thread that has an ID of its own.
func aThread(container string, limit spec.Limit) *fakeProcess {
	p := aProcess(container, limit)
	p.leader = leader
	return p
}

// fakeKernel is a table of processes in which things happen between two questions.
type fakeKernel struct {
	table   map[int]*fakeProcess
	asked   int
	happens func(k *fakeKernel, asked int) // before each question
	lists   func(k *fakeKernel)            // before all processes are listed
	pauses  func(k *fakeKernel)            // in each pause
	refuse  error                          // what set says
}

func (k *fakeKernel) ask(pid int) *fakeProcess {
	if k.happens != nil {
		k.happens(k, k.asked)
	}
	k.asked++
	return k.table[pid]
}

func (k *fakeKernel) processes() ([]int, error) {
	k.ask(0)
	if k.lists != nil {
		k.lists(k)
	}
	return slices.Sorted(maps.Keys(k.table)), nil
}

func (k *fakeKernel) read(pid int, name string) ([]byte, error) {
	p := k.ask(pid)
	if p == nil {
		return nil, errors.New("no such process")
	}
	switch name {
	case "status":
		return fmt.Appendf(nil, "Name:\ta\nTgid:\t%d\n", cmp.Or(p.leader, pid)), nil
	case "cgroup":
		return []byte("0::/kubepods/" + p.container), nil
	}
	return fmt.Appendf(nil, "Max locked memory  %s %s bytes\n", words(p.limit.Soft), words(p.limit.Hard)), nil
}

func words(l spec.Limit) string {
	if l == spec.Unlimited {
		return "unlimited"
	}
	return fmt.Sprint(uint64(l))
}

func (k *fakeKernel) self() int         { return 1 }
func (k *fakeKernel) changeable() error { return nil }

func (k *fakeKernel) open(pid int) (holder, error) {
	p := k.ask(pid)
	if p == nil {
		return nil, errGone
	}
	if p.leader != 0 && p.leader != pid {
		return nil, errThread
	}
	return fakeHolder{k, pid, p}, nil
}

func (k *fakeKernel) set(pid int, limit spec.Rlimit) (spec.Rlimit, error) {
	p := k.ask(pid)
	if p == nil {
		return spec.Rlimit{}, errGone
	}
	if k.refuse != nil {
		return spec.Rlimit{}, k.refuse
	}
	former := p.limit
	p.limit = limit
	return former, nil
}

func (k *fakeKernel) pause(context.Context, time.Duration) {
	if k.pauses != nil {
		k.pauses(k)
	}
}

type fakeHolder struct {
	k   *fakeKernel
	pid int
	p   *fakeProcess
}

func (h fakeHolder) holds() bool { return h.k.ask(h.pid) == h.p }
func (h fakeHolder) close()      {}

// recyclingAtSet gives the ID to a stranger in the very moment of the first change.
type recyclingAtSet struct {
	*fakeKernel
	stranger *fakeProcess
	sets     *int
}

func (k *recyclingAtSet) set(pid int, limit spec.Rlimit) (spec.Rlimit, error) {
	if *k.sets++; *k.sets == 1 {
		k.table[pid] = k.stranger
	}
	return k.fakeKernel.set(pid, limit)
}

// specs is a runtime that keeps specs.
type specs struct {
	applied map[string]spec.Grant
	then    func(container string)
	err     error
}

func (s *specs) ApplyRunning(_ context.Context, container string, grant spec.Grant) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	if s.applied == nil {
		s.applied = map[string]spec.Grant{}
	}
	s.applied[container] = grant
	if s.then != nil {
		s.then(container)
	}
	return true, nil
}
