// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package must ends a test whose setup fails. Do not use it for the tested behavior: compare that with what you want,
// and report the difference.
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
