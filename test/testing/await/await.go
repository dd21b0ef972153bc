// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await lets tests wait for what happens in the background.
package await

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Timeout is how long a test waits for what normally happens at once. Only a failing test waits that long. On a busy
// machine, what usually takes milliseconds can take seconds.
const Timeout = time.Minute

// That waits until a condition holds. It checks the condition every millisecond, and fails the test if the condition
// does not hold in time.
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

// Success waits until an attempt returns no error. It tries every millisecond, and fails the test with the last error
// if no attempt succeeds in time.
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

// Receive waits for a value from a channel, and fails the test if no value arrives in time.
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

// Beside runs a function in the background of a test. end cancels the function's context and waits until the function
// has returned. It is also called when the test ends.
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
