// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAdvice(t *testing.T) {
	for err, want := range map[error]string{
		syscall.ENOSPC: ": free up space on the file system",
		syscall.EROFS:  ": choose a writable path",
		syscall.EXDEV: ": the file's directory is a mount point, so write the file to another directory, and then move it to the mount " +
			"point",
		syscall.ENOENT: "",
	} {
		wrapped := fmt.Errorf("cannot write spec.json: %w", &os.LinkError{Op: "rename", Old: "a", New: "b", Err: err})
		if got := Advice(wrapped); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("advice(%v) = %q, want %q", err, got, want)
		}
	}
	if got := Advice(errors.New("other")); got != "" {
		t.Errorf("advice for another error: %q", got)
	}
}
