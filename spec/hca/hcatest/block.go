// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Block has a regular file below root block each reader, as an attribute of a sick HCA blocks its reader. That ends
// with unblock, with the test, or after the 45 s of /proc/sys/fs/lease-break-time: the file is leased, see fcntl(2).
func Block(t testing.TB, root, path string) (unblock func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(root, path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("lease %s: %v", path, err)
	}
	unblock = sync.OnceFunc(func() { _ = f.Close() })
	t.Cleanup(unblock)
	return unblock
}
