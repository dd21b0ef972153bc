// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
)

func TestRaise(t *testing.T) {
	unlimited := spec.Rlimit{Soft: spec.Unlimited, Hard: spec.Unlimited}
	for name, test := range map[string]struct {
		want          spec.Limit
		current, then spec.Rlimit
		raised        int
	}{
		"low":                {wanted, spec.Rlimit{Soft: low, Hard: low}, spec.Rlimit{Soft: wanted, Hard: wanted}, 1},
		"only the soft one":  {wanted, spec.Rlimit{Soft: low, Hard: high}, spec.Rlimit{Soft: wanted, Hard: high}, 1},
		"to unlimited":       {spec.Unlimited, spec.Rlimit{Soft: low, Hard: high}, unlimited, 1},
		"enough":             {wanted, spec.Rlimit{Soft: wanted, Hard: wanted}, spec.Rlimit{Soft: wanted, Hard: wanted}, 0},
		"more than enough":   {wanted, unlimited, unlimited, 0},
		"enough but no more": {wanted, spec.Rlimit{Soft: wanted, Hard: high}, spec.Rlimit{Soft: wanted, Hard: high}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			member, stranger := &fakeProcess{container: idA, limit: test.current}, &fakeProcess{container: idB, limit: test.current}
			p := &Processes{&fakeKernel{table: map[int]*fakeProcess{5: member, 6: stranger, 7: aProcess("", low)}}}
			got := p.Raise(t.Context(), map[string]spec.Limit{idA: test.want})
			if want := (Outcome{Raised: test.raised}); len(got) != 1 || got[idA] != want {
				t.Errorf("outcome %+v, want %+v", got, want)
			}
			if member.limit != test.then {
				t.Errorf("limit %v, want %v", member.limit, test.then)
			}
			if stranger.limit != test.current {
				t.Errorf("another container's process was changed to %v", stranger.limit)
			}
		})
	}
}

func TestRaiseIsToldOfEachContainer(t *testing.T) {
	k := &fakeKernel{table: map[int]*fakeProcess{5: aProcess(idA, low), 6: aProcess(idA, low), 7: aProcess(idA, high), 8: aProcess(idB, low)}}
	ended := strings.Repeat("c3", 32)
	got := (&Processes{k}).Raise(t.Context(), map[string]spec.Limit{idA: wanted, idB: spec.Unlimited, ended: wanted})
	if len(got) != 3 || got[idA] != (Outcome{Raised: 2}) || got[idB] != (Outcome{Raised: 1}) || got[ended] != (Outcome{}) {
		t.Errorf("%+v", got)
	}
	k.refuse = errors.New("no")
	got = (&Processes{k}).Raise(t.Context(), map[string]spec.Limit{idA: spec.Unlimited, idB: wanted})
	if got[idA].Err != k.refuse || got[idB] != (Outcome{}) { //nolint:errorlint // it is the very error
		t.Errorf("refused: %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := (&Processes{k}).Raise(ctx, map[string]spec.Limit{idA: wanted}); !errors.Is(got[idA].Err, context.Canceled) {
		t.Errorf("cancelled: %+v", got)
	}
}

// A process that forks just before it is raised leaves a child that the same pass may have missed.
func TestForksAreFollowed(t *testing.T) {
	next := 100
	k := &fakeKernel{table: map[int]*fakeProcess{100: aProcess(idA, low)}}
	k.happens = func(k *fakeKernel, asked int) {
		if asked%5 == 1 && next > 80 { // to a lower ID, as after the IDs have wrapped around
			next--
			child := *k.table[next+1]
			k.table[next] = &child
		}
	}
	got := (&Processes{k}).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]
	if got.Err != nil || got.Raised < 2 {
		t.Errorf("%+v: want more than one process to have been low", got)
	}
	for pid, p := range k.table {
		if p.limit.Soft < wanted {
			t.Errorf("process %d is left with %v", pid, p.limit)
		}
	}
	k.happens = nil
	k.lists = func(k *fakeKernel) { // for ever
		next--
		k.table[next] = aProcess(idA, low)
	}
	if got := (&Processes{k}).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]; got.Err == nil || !strings.Contains(got.Err.Error(), "gone through 50 times") {
		t.Errorf("endless new processes: %+v", got)
	}
}

// A fork that had begun before its parent was raised, and takes longer than the passes do, leaves a child that no pass but one after a
// pause can see. A container beside it that forks for ever keeps it from nothing.
func TestSlowForkIsAwaited(t *testing.T) {
	for name, restless := range map[string]bool{"alone": false, "beside a restless container": true} {
		t.Run(name, func(t *testing.T) {
			k := &fakeKernel{table: map[int]*fakeProcess{5: aProcess(idA, low)}}
			child, paused := aProcess(idA, low), 0
			k.pauses = func(k *fakeKernel) {
				paused++
				k.table[6] = child
			}
			wants := map[string]spec.Limit{idA: wanted}
			if restless {
				wants[idB] = wanted
				k.lists = func(k *fakeKernel) { k.table[1000+len(k.table)] = aProcess(idB, low) }
			}
			got := (&Processes{k}).Raise(t.Context(), wants)
			if got[idA] != (Outcome{Raised: 2}) || child.limit.Soft != wanted {
				t.Errorf("%+v, the child has %v", got[idA], child.limit)
			}
			if paused != 2 { // after each pass that found none low, but the last
				t.Errorf("%d pauses, want 2", paused)
			}
			if restless && got[idB].Err == nil {
				t.Errorf("the restless one: %+v", got[idB])
			}
		})
	}
}

// Whenever the process ends and its ID becomes another's, once or twice, in whatever moment: no stranger's limit differs in the end, and
// no process of the container is left low.
func TestRecycledIDs(t *testing.T) {
	const pid = 5
	recycled, hit := 0, 0
	for name, successors := range map[string][]*fakeProcess{
		"stranger":                      {aProcess(idB, low)},
		"stranger with more":            {aProcess(idB, high)},
		"stranger with what is given":   {aProcess(idB, wanted)},
		"nobody":                        {nil},
		"two strangers":                 {aProcess(idB, low), aProcess("", 2*low)},
		"a stranger, then nobody":       {aProcess(idB, low), nil},
		"a stranger, then a member":     {aProcess(idB, low), aProcess(idA, low)},
		"a member, then a stranger":     {aProcess(idA, low), aProcess(idB, low)},
		"another member":                {aProcess(idA, low)},
		"a stranger that is as low":     {aProcess(idB, low/2)},
		"nobody, then a stranger":       {nil, aProcess(idB, low)},
		"two strangers with equal ones": {aProcess(idB, low), aProcess("", low)},
		"a stranger's thread":           {aThread(idB, low)},
		"a thread, then a stranger":     {aThread(idB, low), aProcess("", high)},
		"a stranger, then a thread":     {aProcess(idB, low), aThread("", 2*low)},
		"a thread, then nobody":         {aThread(idB, low), nil},
	} {
		for first := range 40 {
			for second := first; second < 40; second++ {
				k := &fakeKernel{table: map[int]*fakeProcess{pid: aProcess(idA, low)}}
				var all []*fakeProcess
				for _, s := range successors {
					if s != nil {
						copied := *s
						s = &copied
					}
					all = append(all, s)
				}
				become := func(p *fakeProcess) {
					delete(k.table, leader)
					delete(k.table, pid)
					if p != nil {
						k.table[pid] = p
					}
					if p != nil && p.leader != 0 {
						k.table[p.leader] = p
					}
				}
				k.happens = func(_ *fakeKernel, asked int) {
					if asked == first {
						become(all[0])
						recycled++
					}
					if asked == second && len(all) > 1 {
						become(all[1])
					}
				}
				original := k.table[pid]
				got := (&Processes{k}).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]
				if got.Err != nil {
					t.Errorf("%s at %d and %d: %v", name, first, second, got.Err)
				}
				if original.limit.Soft < wanted && k.table[pid] == original {
					t.Errorf("%s at %d and %d: the process is left low", name, first, second)
				}
				for _, s := range all {
					if s == nil {
						continue
					}
					if s.container != idA && k.table[pid] == s && s.limit != s.original {
						t.Errorf("%s at %d and %d: the stranger with %v has %v", name, first, second, s.original, s.limit)
					}
					if s.container == idA && k.table[pid] == s && s.limit.Soft < wanted && second < 10 {
						t.Errorf("%s at %d and %d: the other member is left low", name, first, second)
					}
				}
				if first < k.asked {
					hit++
				}
			}
		}
	}
	if recycled == 0 || hit == 0 {
		t.Error("nothing was recycled: the test tests nothing")
	}
}

func TestStrangerThatStaysRaisedIsToldOf(t *testing.T) {
	k := &fakeKernel{table: map[int]*fakeProcess{5: aProcess(idA, low)}}
	sets := 0
	k.happens = func(k *fakeKernel, _ int) {
		if k.table[5].container == idB && k.table[5].limit.Soft != low {
			k.refuse = errors.New("no more")
		}
	}
	stranger := aProcess(idB, low)
	k2 := &recyclingAtSet{fakeKernel: k, stranger: stranger, sets: &sets}
	got := (&Processes{k2}).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]
	if got.Err == nil || !strings.Contains(got.Err.Error(), "process 5 got the ID of one that ended") || !strings.HasSuffix(got.Err.Error(), " to 64Ki: no more") {
		t.Errorf("%+v", got)
	}
}

func TestRepair(t *testing.T) {
	k := &fakeKernel{table: map[int]*fakeProcess{5: aProcess(idA, low)}}
	p := &Processes{k}
	// An exec that took its limits from the old spec begins just before that is changed.
	stored := &specs{then: func(string) { k.table[6] = aProcess(idA, low) }}
	got := p.Repair(t.Context(), map[string]spec.Limit{idA: wanted}, stored)
	if got[idA] != (Repaired{Outcome: Outcome{Raised: 2}, SpecChanged: true}) {
		t.Errorf("%+v", got)
	}
	if grant := stored.applied[idA]; len(stored.applied) != 1 || grant.Memlock != wanted || grant.IPCLock != spec.IPCLockNo || grant.Devices != nil {
		t.Errorf("applied to stored specs: %v", stored.applied)
	}
	if k.table[6].limit.Soft < wanted {
		t.Error("the exec is left low")
	}

	k.table[7] = aProcess(idB, low)
	if got := p.Repair(t.Context(), map[string]spec.Limit{idB: wanted}, nil)[idB]; got != (Repaired{Outcome: Outcome{Raised: 1}}) {
		t.Errorf("without stored specs: %+v", got)
	}
	bad := errors.New("bad")
	got = p.Repair(t.Context(), map[string]spec.Limit{idB: wanted}, &specs{err: bad})
	if got[idB].Err != nil || got[idB].SpecErr != bad { //nolint:errorlint // it is the very error
		t.Errorf("with a stored spec that cannot be changed: %+v", got)
	}
	k.refuse = bad
	untouched := &specs{}
	got = p.Repair(t.Context(), map[string]spec.Limit{idB: spec.Unlimited}, untouched)
	if got[idB].Err != bad || len(untouched.applied) > 0 { //nolint:errorlint // it is the very error
		t.Errorf("where processes cannot be raised: %+v, stored specs %v", got, untouched.applied)
	}
}
