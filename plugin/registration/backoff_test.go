// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"testing"
	"time"
)

// TestBackoffs_after checks that a plugin that was registered for a long time starts over when it is dropped: it
// registers at once, and the next time after the shortest interval.
func TestBackoffs_after(t *testing.T) {
	b := newBackoffs()
	soon := &droppedError{after: time.Second}
	if got := b.delayAfter(soon); got != 0 {
		t.Errorf("the first time, it waits %s", got)
	}
	var longest time.Duration
	for range 10 {
		longest = max(longest, b.delayAfter(soon))
	}
	const shortest = dropAgain * 3 / 2 // including its jitter
	if longest <= shortest {
		t.Errorf("it waits %s at most, want longer and longer", longest)
	}
	if got := b.delayAfter(&droppedError{after: stable}); got != 0 {
		t.Errorf("after it was stable, it waits %s", got)
	}
	if got := b.delayAfter(soon); got > shortest {
		t.Errorf("after it was stable, it waits %s the second time, want %s at most", got, shortest)
	}
}
