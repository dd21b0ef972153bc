// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// TestRestart: a kubelet that comes back is found, both in the next look-up and in one that has begun.
func TestRestart(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	k := &kubelet{get: knows(trainer)}
	socket := newSocket(t)
	stop := serve(t, socket, k)
	c := New(Options{Socket: socket, Budget: aLongTime})
	if _, _, err := timed(c, "s1", "trainer"); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, _, err := timed(c, "s1", "trainer"); err != nil {
		t.Errorf("what is known of a pod is not used while the kubelet is away: %v", err)
	}
	var failed atomic.Int64
	dial := c.dial
	c.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			failed.Add(1)
		}
		return conn, err
	}
	result := make(chan error)
	go func() {
		_, _, err := timed(c, "s2", "trainer")
		result <- err
	}()
	await.That(t, aLongTime/2, "tried and tried again", func() bool { return failed.Load() > 1 })
	serve(t, socket, k)
	if err := <-result; err != nil {
		t.Errorf("a look-up that began while the kubelet was away: %v", err)
	}
	if _, _, err := timed(c, "s3", "trainer"); err != nil {
		t.Errorf("a look-up after the kubelet came back: %v", err)
	}
}

// TestRestartAfterFailures: a kubelet that comes back is asked at once, although look-ups failed while it was down: what it creates
// first must not be left alone.
func TestRestartAfterFailures(t *testing.T) {
	k := &kubelet{get: knows(pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}}))}
	socket := newSocket(t)
	stop := serve(t, socket, k)
	var changes []bool
	c := New(Options{Socket: socket, Budget: aLongTime, OnChange: func(open bool) { changes = append(changes, open) }})
	if _, _, err := timed(c, "s0", "trainer"); err != nil {
		t.Fatal(err)
	}
	stop()
	c.budget = firstPause
	for i := range breaker.Failures {
		if _, _, err := timed(c, fmt.Sprint("s", 1+i), "trainer"); err == nil {
			t.Fatal("nobody serves, and there is an answer")
		}
	}
	if _, _, err := timed(c, "s9", "trainer"); err == nil || !strings.Contains(err.Error(), "3 look-ups in a row failed") || !c.Failing() {
		t.Fatalf("after three failures: %v", err)
	}
	c.budget = aLongTime
	serve(t, socket, k)
	if _, _, err := timed(c, "s9", "trainer"); err != nil || c.Failing() {
		t.Errorf("after the restart: %v", err)
	}
	if diff := cmp.Diff([]bool{true, false}, changes); diff != "" {
		t.Errorf("OnChange (-want +got):\n%s", diff)
	}
}
