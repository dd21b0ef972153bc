// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/child"
)

const (
	// waits is how long the runtime waits for an answer here, and stops how long a process is stopped: longer.
	waits, stops = 6 * time.Second, 7 * time.Second
	// recovers is how long the plugin may take to answer again once nothing is stopped, on a busy machine.
	recovers = 15 * time.Second
	// each says that every version has every stop, and not one of several: from so many rounds on.
	each = 50
)

// SIGSTOP of either side of a handover at each message, and SIGCONT when the runtime has lost its patience: as with
// SIGKILL, one plugin is registered afterwards, one process has read the connection, and no container was created without
// the plugin for longer than that.
func TestStoppedDuringAHandover(t *testing.T) {
	version := 0
	eachVersion(t, func(t *testing.T, runtime string) {
		mine := version
		version++
		t.Parallel() // it waits most of the time
		n := newNodeThatWaits(t, runtime, waits)
		n.slowest = stuck // it waits for one that waits for an answer, and waits itself then
		p := n.owner(t, n.handover...)
		n.ask(t, "load 50ms", &counters{})
		for i := mine; ; i++ {
			old, passed, message := i%2 == 0, i/2%2 == 0, 1+i/4
			var reached bool
			if p, reached = n.stopDuring(t, p, old, moment{message: message, passed: passed, sparesState: old}); !reached {
				if message < 4 {
					t.Fatalf("%d messages pass the handover socket, want 4: the test shows nothing", message-1)
				}
				break
			}
			if *rounds < each {
				i += 3 // other versions have the others
			}
		}
		n.judge(t, false)
	})
}

// stopDuring upgrades a plugin, and stops it or the new process at a moment. It returns the plugin that is registered
// then, and whether the moment came.
func (n *node) stopDuring(t *testing.T, old *plugin, stopOld bool, at moment) (*plugin, bool) {
	t.Helper()
	what := fmt.Sprintf("%+v, the old process: %t: ", at, stopOld)
	before, began := n.counters(t), time.Now()
	stop := n.strike(t, what, old, stopOld, at, func(p *plugin) {
		_ = child.Freeze(p.process.Pid) // it may have ended
		time.AfterFunc(stops, func() { _ = p.process.Signal(syscall.SIGCONT) })
	})
	old.end(t)
	stop.next.awaitReady(t, registered)
	stop.leave()
	n.goesOn(t, true)
	if now := n.counters(t); now.Registered > before.Registered+1 {
		t.Errorf("%s%d registrations, want one at most", what, now.Registered-before.Registered)
	}
	if without := n.withoutThePlugin(t, began); without > waits+recovers {
		t.Errorf("%swithout the plugin for %s, want %s at most", what, without, waits+recovers)
	}
	return stop.next, stop.reached.Load()
}

// withoutThePlugin returns the longest time in which containers ended their creation without the plugin's answer.
func (n *node) withoutThePlugin(t *testing.T, since time.Time) (longest time.Duration) {
	t.Helper()
	all := slices.DeleteFunc(n.creations(t), func(c creation) bool { return !c.RDMA || c.Ended.Before(since) })
	slices.SortFunc(all, func(a, b creation) int { return cmp.Compare(a.Ended.UnixNano(), b.Ended.UnixNano()) })
	var first time.Time
	for _, c := range all {
		switch {
		case c.Adjusted:
			first = time.Time{}
		case first.IsZero():
			first = c.Ended
		}
		if !first.IsZero() {
			longest = max(longest, c.Ended.Sub(first))
		}
	}
	return longest
}

// A process that hangs behind one that ends keeps nothing from the one that comes after it: that is registered, alone, and
// the one that hung waits behind it when it goes on.
func TestHangsBehindAnOwner(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		t.Parallel() // it waits most of the time
		n := newNodeThatWaits(t, runtime, waits)
		n.slowest = stuck
		old := n.owner(t, n.handover...)
		n.ask(t, "load 50ms", &counters{})
		hangs := n.start(t, n.handover...)
		hangs.awaitReady(t, waiting)
		if err := child.Freeze(hangs.process.Pid); err != nil {
			t.Fatal(err)
		}
		old.end(t)
		third := n.owner(t, n.handover...)
		if err := hangs.process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		hangs.awaitReady(t, waiting)
		n.goesOn(t, true)
		if c := n.counters(t); c.Registered != 2 {
			t.Errorf("registered %d times, want twice: the old process and the third", c.Registered)
		}
		third.end(t)
		hangs.awaitReady(t, registered)
		n.goesOn(t, true)
		n.judge(t, false)
	})
}
