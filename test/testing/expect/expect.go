// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package expect compares what a test gets with what it wants. Texts that are written down in files are package golden's.
package expect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test with the difference where two values differ, and goes on.
func Equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
