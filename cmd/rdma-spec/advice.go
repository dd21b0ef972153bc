// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// advice says what to do about an error for which the node is to blame, whatever was tried; nothing where the error says enough.
func advice(err error) string {
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
	return ": root may not either, so look at its attributes (lsattr) and at what SELinux or AppArmor say"
}
