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

// creation is the creation of one container: when it began, when the container was running or was refused, and the
// container's limit then.
type creation struct {
	name, id   string
	began, ran time.Time
	memlock    string
}

// load consists of clients, each of which starts one container after the other in a pod until the load is stopped.
type load struct {
	t       *testing.T
	ctx     context.Context
	stop    func()
	clients int
	tries   atomic.Int64

	mu               sync.Mutex
	started, refused []creation
}

// startLoad starts clients that create containers with a verbs device. A creation may only fail with an error that
// contains the text refusal. One more client creates containers without RDMA in another pod, which must not fail.
func startLoad(t *testing.T, pod *containerd.Sandbox, clients int, refusal string) *load {
	t.Helper()
	// After the stop, no creation begins, but the ones in progress are completed, since containerd would continue with
	// them anyway.
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

// note records a running container and its limit.
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

// awaitTries waits until the number of creations that ended in the meantime is twice the number of clients. At least as
// many as there are clients then also began in the meantime.
func (l *load) awaitTries() {
	l.t.Helper()
	want := l.tries.Load() + 2*int64(l.clients)
	await.That(l.t, 2*patience, "the clients try again", func() bool { return l.tries.Load() >= want })
}

// low returns the containers that started with less than their grant. The load must have been stopped.
func (l *load) low() []creation {
	var low []creation
	for _, c := range l.started {
		if c.memlock != "unlimited" {
			low = append(low, c)
		}
	}
	return low
}

// expectBoth checks that some containers were started and some were refused.
func (l *load) expectBoth() {
	l.t.Helper()
	if len(l.started) == 0 || len(l.refused) == 0 {
		l.t.Errorf("%d containers were started and %d refused: this tests nothing", len(l.started), len(l.refused))
	}
}
