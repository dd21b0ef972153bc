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
	// waits is the runtime's timeout for an answer. stops is how long a process is stopped, which must be longer.
	waits, stops = 6 * time.Second, 7 * time.Second
	// recovers is how long the plugin may take to answer again on a busy machine, after no process is stopped any more.
	recovers = 15 * time.Second
	// each is the number of rounds from which on each version of NRI runs all stops, instead of some of them.
	each = 50
)

// Either side of a handover receives SIGSTOP at each message, and SIGCONT after the runtime's timeout. As with SIGKILL,
// one plugin is registered afterwards, only one process has read from the connection, and containers were created
// without the plugin for no longer than that.
func TestStoppedDuringAHandover(t *testing.T) {
	version := 0
	eachVersion(t, func(t *testing.T, runtime string) {
		mine := version
		version++
		t.Parallel() // it mostly waits
		n := newNodeThatWaits(t, runtime, waits)
		n.slowest = stuck // a creation may have to wait for one that waits for an answer, and then wait for its own
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
				i += 3 // the other versions run the other stops
			}
		}
		n.judge(t, false)
	})
}

// stopDuring upgrades a plugin, and stops it or the new process at a moment. It returns the plugin that is registered
// afterwards, and whether the moment was reached.
func (n *node) stopDuring(t *testing.T, old *plugin, stopOld bool, at moment) (*plugin, bool) {
	t.Helper()
	what := fmt.Sprintf("%+v, the old process: %t: ", at, stopOld)
	before, began := n.counters(t), time.Now()
	stop := n.strike(t, what, old, stopOld, at, func(p *plugin) {
		_ = child.Freeze(p.process.Pid) // fails if the process has ended
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

// withoutThePlugin returns the longest time during which all creations that ended did so without the plugin's answer.
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

// If a process hangs while it waits behind one that ends, the next process is not blocked: it alone is registered. When
// the process that hung continues, it waits behind the new one.
func TestHangsBehindAnOwner(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		t.Parallel() // it mostly waits
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
