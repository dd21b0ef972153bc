// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await has tests wait for what happens beside them.
package await

import (
	"testing"
	"time"
)

// That waits until a condition holds, and fails the test if it does not within a time. It looks every millisecond.
func That(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %s still not: %s", within, what)
		}
	}
}
