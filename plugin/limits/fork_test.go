// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// A fork that began before its parent was raised leaves a child that is low, and that appears when the fork ends: it is awaited as long as
// its thread may be in it, however busy the machine is. Time is counted by the pauses.
func TestForksAreAwaited(t *testing.T) {
	type state = limitstest.Thread
	asleep, idle, waiting := state{State: 'S'}, state{State: 'R'}, state{State: 'D'}
	const longest = 10 * time.Second
	for name, test := range map[string]struct {
		threads func(after time.Duration) map[int]state
		born    time.Duration // when the child appears; 0: there is none
		waited  time.Duration
	}{
		"no fork":                   {threads: func(time.Duration) map[int]state { return map[int]state{5: asleep, 6: asleep} }},
		"stopped":                   {threads: func(time.Duration) map[int]state { return map[int]state{5: {State: 'T'}, 6: {State: 't'}} }},
		"a fork, and no CPU for it": {threads: until(3*time.Second, idle, asleep), born: 3 * time.Second, waited: 3 * time.Second},
		"a fork without memory":     {threads: until(3*time.Second, waiting, asleep), born: 3 * time.Second, waited: 3 * time.Second},
		"a fork, then busy":         {threads: until(3*time.Second, idle, state{State: 'R', User: 100 * time.Millisecond}), born: 3 * time.Second, waited: 3 * time.Second},
		"a fork of a thread's": {threads: func(after time.Duration) map[int]state {
			return map[int]state{5: asleep, 7: until(3*time.Second, idle, asleep)(after)[5]}
		}, born: 3 * time.Second, waited: 3 * time.Second},
		"its thread ends": {threads: func(after time.Duration) map[int]state {
			return map[bool]map[int]state{true: {5: asleep, 7: idle}, false: {5: asleep}}[after < time.Second]
		}, born: time.Second, waited: time.Second},
		"busy, and no fork": {threads: func(after time.Duration) map[int]state {
			return map[int]state{5: {State: 'R', User: time.Hour + after}}
		}, waited: 100 * time.Millisecond},
		"busy on a quarter of a CPU":  {threads: func(after time.Duration) map[int]state { return map[int]state{5: {State: 'R', User: after / 4}} }, waited: 400 * time.Millisecond},
		"never on a CPU":              {threads: until(time.Hour, idle, asleep), waited: longest},
		"for ever in a sick driver":   {threads: until(time.Hour, waiting, asleep), waited: longest},
		"beside a restless container": {threads: until(3*time.Second, idle, asleep), born: 3 * time.Second, waited: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			parent, child := aProcess(idA, low), aProcess(idA, low)
			parent.Threads = test.threads(0)
			k := &limitstest.Kernel{Table: processes{5: parent}}
			waited := time.Duration(0)
			k.Pauses = func(d time.Duration) {
				waited += d
				parent.Threads = test.threads(waited)
				if test.born > 0 && waited >= test.born {
					k.Table[4] = child
				}
			}
			wants, raised := map[string]spec.Limit{idA: wanted}, 1
			restless := name == "beside a restless container"
			if restless {
				wants[idB] = wanted
				k.Lists = func() { k.Table[1000+len(k.Table)] = aProcess(idB, low) }
			}
			if test.born > 0 {
				raised = 2
			}
			got := limits.On(k).Raise(t.Context(), wants)
			if got[idA] != (limits.Outcome{Raised: raised}) {
				t.Errorf("%+v, want %d raised", got[idA], raised)
			}
			if test.born > 0 && child.Limit.Soft != wanted {
				t.Errorf("the child has %v", child.Limit)
			}
			if waited < test.waited || waited > test.waited+100*time.Millisecond {
				t.Errorf("waited %s, want %s", waited, test.waited)
			}
			if restless && got[idB].Err == nil {
				t.Errorf("the restless one: %+v", got[idB])
			}
		})
	}
}

// A process that is never on a CPU, and that is low again after each wait, does not hold a call up for longer than any other.
func TestForksAreAwaitedOnce(t *testing.T) {
	restless := aProcess(idA, low)
	restless.Threads = map[int]limitstest.Thread{5: {State: 'R'}}
	k := &limitstest.Kernel{Table: processes{5: restless}}
	waited := time.Duration(0)
	k.Pauses = func(d time.Duration) {
		if waited += d; waited%(3*time.Second) == 0 {
			restless.Limit = aProcess(idA, low).Limit
		}
	}
	limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted})
	if waited > 10*time.Second {
		t.Errorf("waited %s", waited)
	}
}

// until gives the threads of a process with one thread, which does one thing first and then another.
func until(end time.Duration, first, then limitstest.Thread) func(time.Duration) map[int]limitstest.Thread {
	return func(after time.Duration) map[int]limitstest.Thread {
		if after < end {
			return map[int]limitstest.Thread{5: first}
		}
		return map[int]limitstest.Thread{5: then}
	}
}

// Nothing is awaited of processes that had enough: their forks cannot leave a child that is low.
func TestNothingIsAwaitedWhereNothingWasLow(t *testing.T) {
	enough := aProcess(idA, high)
	enough.Threads = map[int]limitstest.Thread{5: {State: 'R'}}
	k := &limitstest.Kernel{Table: processes{5: enough}, Pauses: func(d time.Duration) { t.Errorf("waited %s", d) }}
	if got := limits.On(k).Raise(t.Context(), map[string]spec.Limit{idA: wanted})[idA]; got != (limits.Outcome{}) {
		t.Errorf("%+v", got)
	}
}
