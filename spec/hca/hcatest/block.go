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

// Block makes the readers of a regular file below root block, in the same way as the readers of a faulty HCA's
// attribute. Block leases the file: see fcntl(2). The readers continue when unblock is called, when the test ends, or
// after the time in /proc/sys/fs/lease-break-time (45 s by default).
func Block(t testing.TB, root, path string) (unblock func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(root, path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("cannot lease %s: %v", path, err)
	}
	unblock = sync.OnceFunc(func() { _ = f.Close() })
	t.Cleanup(unblock)
	return unblock
}
