// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package churn has something done again and again beside a test. It knows nothing of what that is.
package churn

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// Churn is something that is done again and again.
type Churn struct {
	// End waits for the end of what is under way, and fails the test if anything has failed. The test's end calls it, too.
	End   func()
	count atomic.Int64
}

// Start begins to do something, with numbers from 0 on, until it fails or the churn ends.
func Start(t testing.TB, do func(ctx context.Context, number int) error) *Churn {
	var c Churn
	var err error
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err == nil {
			select {
			case <-stop:
				return
			default:
			}
			if err = do(t.Context(), c.Count()); err == nil {
				c.count.Add(1)
			}
		}
	}()
	c.End = sync.OnceFunc(func() {
		close(stop)
		<-ended
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.End)
	return &c
}

// Count returns how often it was done so far.
func (c *Churn) Count() int { return int(c.count.Load()) }

// AwaitMore waits until it was done once from its beginning to its end.
func (c *Churn) AwaitMore(t testing.TB, within time.Duration) {
	t.Helper()
	enough := c.Count() + 2
	await.That(t, within, "done twice more", func() bool { return c.Count() >= enough })
}
