// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import "testing"

// failing is a testing.TB that records a failure instead of failing the test.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Errorf(string, ...any) { f.failed = true }

func TestTwoCasesOfOneName(t *testing.T) {
	var says Cases
	f := &failing{TB: t}
	for i, name := range []string{"a", "b", "a"} {
		if says.Add(f, name, "something"); f.failed != (i == 2) {
			t.Errorf("case %d: failed: %t", i, f.failed)
		}
	}
}
