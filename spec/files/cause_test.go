// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestCause(t *testing.T) {
	none := filepath.Join(scratch.Dir(t), "none")
	_, opened := os.Open(none)
	_, dialled := net.Dial("unix", none)
	other := errors.New("another error")
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"a file":   {opened, "no such file or directory"},
		"two":      {os.Rename(none, none+"2"), "no such file or directory"},
		"a socket": {dialled, "no such file or directory"},
		"wrapped":  {fmt.Errorf("reading: %w", opened), "no such file or directory"},
		"no call":  {&fs.PathError{Op: "read", Path: none, Err: other}, "another error"},
		"other":    {other, "another error"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Cause(test.err)
			if got.Error() != test.want || errors.Is(got, fs.ErrNotExist) != errors.Is(test.err, fs.ErrNotExist) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
	if got := Cause(nil); got != nil {
		t.Errorf("nil gives %v", got)
	}
}
