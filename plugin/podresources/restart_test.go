// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
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
