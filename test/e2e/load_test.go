// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// creation is one container of a load: when its creation began and when it ran, or was refused, and its limit then.
type creation struct {
	name, id   string
	began, ran time.Time
	memlock    string
}

// load is clients that start containers in a pod, one after the other, until they are stopped.
type load struct {
	t       *testing.T
	ctx     context.Context
	stop    func()
	clients int
	tries   atomic.Int64

	mu               sync.Mutex
	started, refused []creation
}

// startLoad has clients start containers that hold a verbs device; a creation may fail with an error that says what
// refusal says, and with no other. One more client starts containers that have nothing to do with RDMA, in a pod of
// their own, which may not fail at all.
func startLoad(t *testing.T, pod *containerd.Sandbox, clients int, refusal string) *load {
	t.Helper()
	// Nobody begins a creation after the stop; those that have begun end, since containerd would go on with them anyway.
	l := &load{t: t, ctx: within(t, 15*patience), clients: clients}
	going, cancel := context.WithCancel(l.ctx)
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := 0; going.Err() == nil; i++ {
				l.holder(pod, fmt.Sprintf("holder-%d-%d", client, i), refusal)
			}
		})
	}
	other := runPod(t, containerd.Pod{})
	wg.Go(func() {
		for i := 0; going.Err() == nil; i++ {
			l.unrelated(other, fmt.Sprintf("unrelated-%d", i))
		}
	})
	l.stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) holder(pod *containerd.Sandbox, name, refusal string) {
	defer l.tries.Add(1)
	began := time.Now()
	id, err := pod.Run(l.ctx, containerd.Container{Name: name, Devices: containerd.Verbs(0)})
	ran := time.Now()
	switch {
	case l.ctx.Err() != nil:
	case err != nil && refusal != "" && strings.Contains(err.Error(), refusal):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refused = append(l.refused, creation{name: name, began: began, ran: ran})
	case err != nil:
		l.t.Errorf("container %s was not started: %v", name, err)
	default:
		l.note(creation{name: name, id: id, began: began, ran: ran})
	}
}

// note adds a container that runs, with its limit.
func (l *load) note(c creation) {
	pid, err := ctrd.PID(l.ctx, c.id)
	if err == nil {
		c.memlock, err = softMemlock(pid)
	}
	if err != nil {
		if l.ctx.Err() == nil {
			l.t.Errorf("container %s: %v", c.name, err)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = append(l.started, c)
}

func (l *load) unrelated(pod *containerd.Sandbox, name string) {
	id, err := pod.Run(l.ctx, containerd.Container{Name: name})
	if err == nil {
		err = ctrd.RemoveContainer(l.ctx, id)
	}
	if err != nil && l.ctx.Err() == nil {
		l.t.Errorf("container %s, which has nothing to do with RDMA: %v", name, err)
	}
}

// awaitTries waits until twice as many tries have ended as there are clients: as many as there are clients have begun
// meanwhile, then.
func (l *load) awaitTries() {
	l.t.Helper()
	want := l.tries.Load() + 2*int64(l.clients)
	await.That(l.t, 2*patience, "the clients try again", func() bool { return l.tries.Load() >= want })
}

// low returns the containers that ran with less than they should have. The load must have been stopped.
func (l *load) low() []creation {
	var low []creation
	for _, c := range l.started {
		if c.memlock != "unlimited" {
			low = append(low, c)
		}
	}
	return low
}

// expectBoth sees that there were containers that started and containers that were refused.
func (l *load) expectBoth() {
	l.t.Helper()
	if len(l.started) == 0 || len(l.refused) == 0 {
		l.t.Errorf("%d containers were started and %d refused: this tests nothing", len(l.started), len(l.refused))
	}
}
