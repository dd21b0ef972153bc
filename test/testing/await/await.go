// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await has tests wait for what happens beside them.
package await

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Timeout is how long a test waits for what normally happens at once. Only a test that fails waits that long: a
// machine with much else to do may take seconds over what takes milliseconds alone.
const Timeout = time.Minute

// That waits until a condition holds, and fails the test if it does not within a time. It checks every millisecond.
func That(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	errNotYet := errors.New("not yet")
	Success(t, within, what, func() error {
		if condition() {
			return nil
		}
		return errNotYet
	})
}

// Success waits until an attempt gives no error, and fails the test with the last error if all do within a time. It
// tries every millisecond.
func Success(t testing.TB, within time.Duration, what string, attempt func() error) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := attempt()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %s still not %s: %v", within, what, err)
		}
	}
}

// Receive waits for a value from a channel, and fails the test if none comes within a time.
func Receive[T any](t testing.TB, within time.Duration, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(within):
		t.Fatalf("after %s still not %s", within, what)
		panic("unreachable")
	}
}

// Beside runs a function beside the test until its context is done. What is returned ends it, and waits until it has
// ended, as the test's end does.
func Beside(t testing.TB, run func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	end = func() {
		cancel()
		<-ended
	}
	t.Cleanup(end)
	return end
}
