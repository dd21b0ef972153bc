// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package short makes folders with short names, for the sockets of tests.
package short

import (
	"os"
	"testing"
)

// Folder makes a folder that is removed at the end of the test. A test's own folder can have too long a name for a
// socket, whose path has at most 107 bytes.
func Folder(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "rdma")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return path
}
