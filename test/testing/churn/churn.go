// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package churn repeats an action in the background of a test. It does not know what the action does.
package churn

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// Churn is an action that is repeated in the background.
type Churn struct {
	// End waits until the action that is in progress has ended, and fails the test if any action has failed. It is also
	// called when the test ends.
	End   func()
	count atomic.Int64
}

// Start repeats an action, with numbers from 0, until the action fails or the churn ends.
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

// Count returns how many times the action was completed.
func (c *Churn) Count() int { return int(c.count.Load()) }

// AwaitMore waits until the action has been started and completed once more.
func (c *Churn) AwaitMore(t testing.TB, within time.Duration) {
	t.Helper()
	enough := c.Count() + 2
	await.That(t, within, "done twice more", func() bool { return c.Count() >= enough })
}
