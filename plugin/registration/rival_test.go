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

// rival is another plugin that a process may see.
type rival struct {
	present atomic.Bool
	asked   atomic.Int64
}

var errRival = errors.New("the DaemonSet rdma-spec/nri-rdma serves this node")

func (r *rival) see() error {
	r.asked.Add(1)
	if r.present.Load() {
		return errRival
	}
	return nil
}

// awaitAsked waits until the process has looked so often again.
func (r *rival) awaitAsked(t *testing.T, often int64) {
	t.Helper()
	before := r.asked.Load()
	await.That(t, await.Timeout, "it looks again", func() bool { return r.asked.Load() >= before+often })
}

// beside has a process see a rival, and wait for its return for a while.
func beside(r *rival, gone time.Duration) func(*running) {
	return func(p *running) {
		p.Rival, p.rivalGone = r.see, gone
	}
}

// The second plugin of a node stays out and says why, also while the first one restarts, and registers when that is
// gone. It holds no place meanwhile: one that replaces it stays out for itself.
func TestRival(t *testing.T) {
	for name, dir := range map[string]string{"a service": "", "a pod": scratch.Dir(t, "run")} {
		t.Run(name, func(t *testing.T) {
			runtime, other := started(t), &rival{}
			other.present.Store(true)
			second := run(t, &adjuster{}, runtime.Socket, "rdma", beside(other, time.Hour), in(dir))
			second.awaitLine(t, "not registering: "+errRival.Error())
			if second.Out() == nil {
				t.Error("it stays out, and does not say so")
			}
			next := run(t, &adjuster{}, runtime.Socket, "rdma", beside(other, 0), in(dir))
			next.awaitLine(t, "not registering: ")

			other.present.Store(false)
			await.That(t, await.Timeout, "the one that does not wait registers", next.Registered)
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

// A rival that comes between a process's place and its connection is seen before the connection is made.
func TestRival_ComesFirst(t *testing.T) {
	runtime, other := started(t), &rival{}
	second := run(t, &adjuster{}, scratch.Dir(t)+"/none.sock", "rdma", beside(other, 0), in(scratch.Dir(t, "run")))
	second.awaitLine(t, "no NRI socket")
	other.present.Store(true)
	second.awaitLine(t, "not registering: ")
	if runtime.Synchronised() != 0 {
		t.Error("it has registered")
	}
}
