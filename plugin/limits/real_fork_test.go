// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// Ten processes fork while they are raised: none is left low. With one pass and no more, some were in eight runs of twelve.
func TestForkingProcess(t *testing.T) {
	const forkers, forksOfEach = 10, 30
	pid, lines := start(t, fmt.Sprintf(`j=0
		while [ $j -lt %d ]; do
			j=$((j+1))
			(
				i=0
				while [ $i -lt %d ]; do
					i=$((i+1))
					sleep 1000 &
				done
				echo done
				wait
			) &
		done
		echo all fork
		wait`, forkers, forksOfEach))
	p := &Processes{sessions{New("/").kernel, map[int]string{pid: idA}}}
	got := p.Raise(t.Context(), map[string]spec.Limit{idA: softWanted})[idA]
	if got.Err != nil || got.Raised < forkers+1 {
		t.Errorf("%+v: there were %d shells and more to be raised", got, forkers+1)
	}
	for range forkers {
		if !lines.Scan() {
			t.Error("the script did not go on")
		}
	}
	members, err := p.Containers()
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + forkers*(1+forksOfEach); len(members[idA]) != want {
		t.Errorf("%d processes, want %d", len(members[idA]), want)
	}
	left := 0
	for _, member := range members[idA] {
		limit, err := p.Memlock(member)
		if err != nil {
			t.Fatal(err)
		}
		if limit.Soft < softWanted {
			left++
		}
	}
	t.Logf("%d processes, %d raised, the others born raised, %d left low", len(members[idA]), got.Raised, left)
	if left > 0 {
		t.Errorf("%d processes are left low", left)
	}
}

// The real kernel shows which threads sleep, and that a busy one has been in user mode.
func TestThreadsThatMayFork(t *testing.T) {
	pid, _ := start(t, "echo; while :; do :; done")
	p := New("/")
	busy := p.forking(pid)
	if len(busy) != 1 || busy[0].pid != pid || busy[0].tid != pid {
		t.Fatalf("a busy process: %+v", busy)
	}
	before := busy[0]
	p.awaitForks(t.Context(), busy, forkPatience)
	if asleep, user, err := p.state(before); err != nil || asleep || user-before.user < returned {
		t.Errorf("asleep: %t, in user mode for %s since, %v", asleep, user-before.user, err)
	}
	sleeper, _ := start(t, "echo; exec sleep 1000")
	await.That(t, await.Patience, "sleep", func() bool { return len(p.forking(sleeper)) == 0 })
	if asleep, _, err := p.state(thread{pid: sleeper, tid: sleeper}); err != nil || !asleep {
		t.Errorf("asleep: %t, %v", asleep, err)
	}
	if ended := p.forking(1 << 30); ended != nil {
		t.Errorf("a process that has ended: %+v", ended)
	}
}
