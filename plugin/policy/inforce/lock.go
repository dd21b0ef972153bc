// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A writer holds a write lock on the file that it wrote for as long as it lives, and the kernel takes the lock from it
// when it ends, however it ends. A process ID would not do: the plugin's is another one in its pod than on the node.
// The lock is one of an open file description, which only somebody who may write to the file can hold.

func lock(file *os.File) error {
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return fmt.Errorf("cannot lock %s: %w", file.Name(), err)
	}
	return nil
}

// isLocked reports whether another open file holds the write lock of a file.
func isLocked(file *os.File) (bool, error) {
	asked := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &asked); err != nil {
		return false, fmt.Errorf("cannot tell whether the writer of %s lives: %w", file.Name(), err)
	}
	return asked.Type == unix.F_WRLCK, nil
}
