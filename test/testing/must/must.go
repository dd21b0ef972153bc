// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package must ends a test that cannot be prepared. It is not for what the test is about: that is compared with what is
// wanted, and the test says the difference.
package must

import "testing"

// Succeed ends the test at the first error.
func Succeed(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
