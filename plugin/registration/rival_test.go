// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// rival simulates another plugin that a process may see.
type rival struct {
	present atomic.Bool
	asked   atomic.Int64
}

var errRival = errors.New("the rdma-spec/nri-rdma DaemonSet serves this node")

func (r *rival) see() error {
	r.asked.Add(1)
	if r.present.Load() {
		return errRival
	}
	return nil
}

// awaitAsked waits until the process has looked this many more times.
func (r *rival) awaitAsked(t *testing.T, often int64) {
	t.Helper()
	before := r.asked.Load()
	await.That(t, await.Timeout, "it looks again", func() bool { return r.asked.Load() >= before+often })
}

// withRival makes a process see the rival. The process registers after the rival has been gone for the given time.
func withRival(r *rival, gone time.Duration) func(*running) {
	return func(p *running) {
		p.Rival, p.rivalGone = r.see, gone
	}
}

// The second plugin on a node stays out and logs why, even while the first one restarts. It registers when the first
// one is gone. Meanwhile, it holds no lock, so a process that replaces it also stays out.
func TestRival(t *testing.T) {
	for name, dir := range map[string]string{"a service": "", "a pod": scratch.Dir(t, "run")} {
		t.Run(name, func(t *testing.T) {
			runtime, other := started(t), &rival{}
			other.present.Store(true)
			second := run(t, &adjuster{}, runtime.Socket, "rdma", withRival(other, time.Hour), meetIn(dir))
			second.awaitLine(t, "not registering: "+errRival.Error())
			if second.Out() == nil {
				t.Error("it stays out, and does not say so")
			}
			next := run(t, &adjuster{}, runtime.Socket, "rdma", withRival(other, 0), meetIn(dir))
			next.awaitLine(t, "not registering: ")

			other.present.Store(false)
			await.That(t, await.Timeout, "the one that does not wait registers", next.Registered)
			if err := next.Out(); err != nil {
				t.Errorf("the plugin has registered, but still says: %v", err)
			}
			other.awaitAsked(t, 2)
			if second.Registered() || second.Out() == nil {
				t.Error("a rival that is away for a moment is taken for gone")
			}
			if runtime.Synchronised() != 1 {
				t.Errorf("%d plugins have registered, want 1", runtime.Synchronised())
			}
		})
	}
}

// If a rival appears after a process got the lock, but before the process connects, the process sees the rival before
// it connects.
func TestRival_ComesFirst(t *testing.T) {
	runtime, other := started(t), &rival{}
	second := run(t, &adjuster{}, scratch.Dir(t)+"/none.sock", "rdma", withRival(other, 0), meetIn(scratch.Dir(t, "run")))
	second.awaitLine(t, "no NRI socket")
	other.present.Store(true)
	second.awaitLine(t, "not registering: ")
	if runtime.Synchronised() != 0 {
		t.Error("it has registered")
	}
}
