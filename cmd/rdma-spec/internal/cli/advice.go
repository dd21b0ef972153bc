// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Advice returns the remedy for an error of the node's files; "" if the error needs none.
func Advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ": make room there, and try again"
	case errors.Is(err, syscall.EROFS):
		return ": name a place that can be written"
	case errors.Is(err, syscall.EXDEV): // internal/atomicfile, in a drop-in folder
		return ": its folder is mounted separately: write the file elsewhere, and move it there"
	case !errors.Is(err, fs.ErrPermission):
		return ""
	case os.Geteuid() != 0:
		return ": run as root"
	}
	return ": root is refused as well: check its attributes (lsattr), and SELinux or AppArmor"
}
