// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oserror reads the errors of system calls.
package oserror

import (
	"errors"
	"syscall"
)

// Reason gives what the kernel has said, without what was tried and on which file or socket, for a caller that names them itself: the
// name in the error may be that of a temporary file. An error that is not the kernel's is given as it is, nil as nil.
func Reason(err error) error {
	var said syscall.Errno
	if errors.As(err, &said) {
		return said
	}
	return err
}
