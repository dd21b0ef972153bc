// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oserror reads the errors of system calls.
package oserror

import (
	"errors"
	"syscall"
)

// Reason returns the kernel's error without the operation and the file or socket, for a caller that names them itself:
// the name in the error may be that of a temporary file. Other errors, and nil, stay as they are.
func Reason(err error) error {
	var said syscall.Errno
	if errors.As(err, &said) {
		return said
	}
	return err
}
