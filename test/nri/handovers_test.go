// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// An upgrade hands the connection over. The runtime always has one plugin, which answers every request once.
func TestHandovers(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		n := newNode(t, runtime)
		p := n.owner(t, n.handover...)
		n.load(t)
		for range *rounds {
			next := n.start(t, n.handover...)
			next.awaitReady(t, waiting)
			n.pause()
			p.end(t)
			next.awaitReady(t, registered)
			n.goesOn(t, true)
			p = next
		}
		n.judge(t, true)
		if c := n.counters(t); c.Registered != 1 || c.Closed != 0 {
			t.Errorf("registered %d times, %d connections closed, want one registration in all", c.Registered, c.Closed)
		}
	})
}

// owner starts a plugin, and waits until the runtime calls it.
func (n *node) owner(t *testing.T, flags ...string) *plugin {
	t.Helper()
	before := n.counters(t).Registered
	p := n.start(t, flags...)
	p.awaitReady(t, registered)
	n.awaitCount(t, "registered with the runtime", func(c counters) bool { return c.Registered > before })
	return p
}

// While a container is being stopped, a plugin that registers prevents the runtime from creating containers
// (containerd#14083). An upgrade does not.
func TestBesideAStop(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		t.Parallel() // it mostly waits
		n := newNode(t, runtime)
		p := n.owner(t, n.handover...)
		n.load(t)
		next := n.start(t, n.handover...)
		next.awaitReady(t, waiting)
		n.ask(t, "stop", &counters{})
		p.end(t)
		next.awaitReady(t, registered)
		n.goesOn(t, true)
		n.judge(t, true)

		next.end(t)
		n.goesOn(t, false)
		anew := n.start(t)
		await.That(t, stuck, "holding creations up", func() bool {
			before := n.counters(t)
			time.Sleep(time.Second) // a creation takes some milliseconds, so many end in this time
			return strings.Contains(scratch.Read(t, anew.log), `"registering"`) && n.counters(t) == before
		})
		n.ask(t, "stopped", &counters{})
		anew.awaitReady(t, registered)
		n.goesOn(t, true)
	})
}

// If a plugin receives SIGTERM under load, no creation is stuck, and none of its answers is lost, even on a busy
// machine.
func TestEnds(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		for _, loops := range []int{0, 4} {
			t.Run(fmt.Sprintf("beside %d busy loops", loops), func(t *testing.T) {
				n := newNode(t, runtime)
				keepBusy(t, n, loops)
				n.load(t)
				for range *rounds {
					p := n.start(t)
					p.awaitReady(t, registered)
					n.goesOn(t, true)
					n.pause()
					p.end(t)
					n.goesOn(t, false)
				}
				n.judge(t, false)
			})
		}
	})
}

// keepBusy runs busy loops, which take all the CPU time that they can get.
func keepBusy(t *testing.T, n *node, loops int) {
	t.Helper()
	script := fmt.Sprintf("for i in $(seq %d); do while :; do :; done & done; cat; kill $(jobs -p) 2>/dev/null; wait",
		loops)
	startBeside(t, exec.Command("bash", "-c", script), filepath.Join(n.dir, "busy.log"))
}
