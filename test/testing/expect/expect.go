// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package expect compares the results of a test with the expected values. For long texts, use package golden, which
// compares them with files.
package expect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test and prints the difference if two values differ. The test continues.
func Equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
