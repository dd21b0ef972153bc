// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

const low, high, wanted = spec.Limit(64 << 10), spec.Limit(4 << 20), spec.Limit(1 << 20)

var idA, idB = limitstest.ID("a"), limitstest.ID("b")

// aProcess creates a process of a container.
var aProcess = limitstest.NewProcess

// processes is a table of processes by ID.
type processes = map[int]*limitstest.Process

// leader is the ID of the process to which threads belong.
const leader = 9

// aThread creates a thread, which has its own ID.
func aThread(container string, limit spec.Limit) *limitstest.Process {
	p := aProcess(container, limit)
	p.Leader = leader
	return p
}

// recyclingAtSet is a kernel that reuses a process's ID for an unrelated process exactly when the limit is first set.
type recyclingAtSet struct {
	*limitstest.Kernel
	stranger *limitstest.Process
}

func (k recyclingAtSet) Set(pid int, limit spec.Rlimit) (spec.Rlimit, error) {
	if k.Sets() == 0 {
		k.Table[pid] = k.stranger
	}
	return k.Kernel.Set(pid, limit)
}

// specs is a runtime that stores specs.
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

// The processes of each container are raised to the container's wanted limit, and never lowered (package spec does the
// arithmetic). No other processes are changed.
func TestRaise(t *testing.T) {
	both := func(l spec.Limit) spec.Rlimit { return spec.Rlimit{Soft: l, Hard: l} }
	k := &limitstest.Kernel{Table: processes{5: aProcess(idA, low), 6: aProcess(idA, low), 7: aProcess(idA, high),
		8: aProcess(idB, low), 9: aProcess("", low), 10: aProcess(limitstest.ID("stranger"), low)}}
	k.Table[6].Limit.Hard = high
	ended := strings.Repeat("c3", 32)
	outcomes := limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted, idB: spec.Unlimited, ended: wanted})
	want := map[string]limits.Outcome{idA: {Raised: 2}, idB: {Raised: 1}, ended: {}}
	expect.Equal(t, "outcomes", want, outcomes)
	got := map[int]spec.Rlimit{}
	for pid, p := range k.Table {
		got[pid] = p.Limit
	}
	expect.Equal(t, "limits", map[int]spec.Rlimit{5: both(wanted), 6: {Soft: wanted, Hard: high}, 7: both(high),
		8: both(spec.Unlimited), 9: both(low), 10: both(low)}, got)
	k.Refuse = errors.New("no")
	outcomes = limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: spec.Unlimited, idB: wanted})
	if outcomes[idA].Err != k.Refuse || outcomes[idB] != (limits.Outcome{}) { //nolint:errorlint // it is the very error
		t.Errorf("refused: %+v", outcomes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := limits.On(k).Raise(ctx, map[string]spec.Limit{idA: wanted}); !errors.Is(got[idA].Err, context.Canceled) {
		t.Errorf("cancelled: %+v", got)
	}
}

// If a process forks just before it is raised, the same pass may miss its child.
func TestRaise_followsForks(t *testing.T) {
	next := 100
	k := &limitstest.Kernel{Table: processes{100: aProcess(idA, low)}}
	k.Happens = func(asked int) {
		if asked%5 == 1 && next > 80 { // to a lower ID, as after IDs have wrapped around
			next--
			child := *k.Table[next+1]
			k.Table[next] = &child
		}
	}
	got := limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]
	if got.Err != nil || got.Raised < 2 {
		t.Errorf("%+v: want more than one process to have been low", got)
	}
	for pid, p := range k.Table {
		if p.Limit.Soft < wanted {
			t.Errorf("process %d is left with %v", pid, p.Limit)
		}
	}
	k.Happens = nil
	k.Lists = func() { // forever
		next--
		k.Table[next] = aProcess(idA, low)
	}
	if got := limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]; got.Err == nil ||
		!strings.Contains(got.Err.Error(), "in each of 30 passes") {
		t.Errorf("endless new processes: %+v", got)
	}
}

// At whatever moment the process ends and its ID is reused, no unrelated process's limit has changed in the end, and no
// process of the container is low.
func TestRaise_recycledIDs(t *testing.T) {
	const pid = 5
	for name, successor := range map[string]*limitstest.Process{
		"stranger":                  aProcess(idB, low),
		"stranger with more":        aProcess(idB, high),
		"a stranger that is as low": aProcess(idB, low/2),
		"nobody":                    nil,
		"another member":            aProcess(idA, low),
		"a stranger's thread":       aThread(idB, low),
	} {
		recycled := 0
		for moment := range 40 {
			original := aProcess(idA, low)
			k := &limitstest.Kernel{Table: processes{pid: original}}
			var next *limitstest.Process
			k.Happens = func(asked int) {
				if asked != moment {
					return
				}
				recycled++
				delete(k.Table, pid)
				if successor == nil {
					return
				}
				next = new(*successor)
				k.Table[pid] = next
				if next.Leader != 0 {
					k.Table[next.Leader] = next
				}
			}
			got := limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]
			if got.Err != nil {
				t.Errorf("%s at %d: %v", name, moment, got.Err)
			}
			if original.Limit.Soft < wanted && k.Table[pid] == original {
				t.Errorf("%s at %d: the process is left low", name, moment)
			}
			switch {
			case next == nil:
			case next.Container != idA && next.Limit != next.Began:
				t.Errorf("%s at %d: the stranger with %v has %v", name, moment, next.Began, next.Limit)
			case next.Container == idA && next.Limit.Soft < wanted && moment < 10:
				t.Errorf("%s at %d: the other member is left low", name, moment)
			}
		}
		if recycled < 10 {
			t.Errorf("%s: the ID was recycled %d times: the test tests little", name, recycled)
		}
	}
}

func TestRaise_reportsRaisedStranger(t *testing.T) {
	k := &limitstest.Kernel{Table: processes{5: aProcess(idA, low)}}
	k.Happens = func(int) {
		if k.Table[5].Container == idB && k.Table[5].Limit.Soft != low {
			k.Refuse = errors.New("no more")
		}
	}
	stranger := aProcess(idB, low)
	got := limits.On(recyclingAtSet{Kernel: k, stranger: stranger}).Raise(t.Context(),
		map[string]spec.Limit{idA: wanted})[idA]
	if got.Err == nil || !strings.Contains(got.Err.Error(), "the limit of process 5 was raised by mistake") ||
		!strings.HasSuffix(got.Err.Error(), " to 64Ki: no more") {
		t.Errorf("%+v", got)
	}
}

func TestRaiseWithSpecs(t *testing.T) {
	k := &limitstest.Kernel{Table: processes{5: aProcess(idA, low)}}
	p := limits.On(k)
	// An exec that took its limits from the old spec begins just before the spec is changed.
	stored := &specs{then: func(string) { k.Table[6] = aProcess(idA, low) }}
	got := p.RaiseWithSpecs(t.Context(), map[string]spec.Limit{idA: wanted}, stored)
	if got[idA] != (limits.SpecOutcome{Outcome: limits.Outcome{Raised: 2}, SpecChanged: true}) {
		t.Errorf("%+v", got)
	}
	if grant := stored.applied[idA]; len(stored.applied) != 1 || grant.Memlock != wanted ||
		grant.IPCLock != spec.IPCLockNo || grant.Devices != nil {
		t.Errorf("applied to stored specs: %v", stored.applied)
	}
	if k.Table[6].Limit.Soft < wanted {
		t.Error("the exec is left low")
	}

	k.Table[7] = aProcess(idB, low)
	if got := p.RaiseWithSpecs(t.Context(), map[string]spec.Limit{idB: wanted},
		nil)[idB]; got != (limits.SpecOutcome{Outcome: limits.Outcome{Raised: 1}}) {
		t.Errorf("without stored specs: %+v", got)
	}
	bad := errors.New("bad")
	got = p.RaiseWithSpecs(t.Context(), map[string]spec.Limit{idB: wanted}, &specs{err: bad})
	if got[idB].Err != nil || got[idB].SpecErr != bad { //nolint:errorlint // it is the very error
		t.Errorf("with a stored spec that cannot be changed: %+v", got)
	}
	k.Refuse = bad
	untouched := &specs{}
	got = p.RaiseWithSpecs(t.Context(), map[string]spec.Limit{idB: spec.Unlimited}, untouched)
	if got[idB].Err != bad || len(untouched.applied) > 0 { //nolint:errorlint // it is the very error
		t.Errorf("where processes cannot be raised: %+v, stored specs %v", got, untouched.applied)
	}
}
