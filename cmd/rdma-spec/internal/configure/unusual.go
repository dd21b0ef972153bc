// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// sayLinked reports the changed files that have other hard links, whose content does not change.
func sayLinked(stderr io.Writer, changed change.Plan) {
	for _, f := range changed {
		info, err := os.Stat(f.Path)
		if err != nil {
			continue // the file does not exist yet
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
			fmt.Fprintf(stderr, "rdma-spec: %s is one of %d hard links to a file; the other links keep the previous content\n",
				f.Path, stat.Nlink)
		}
	}
}

// immutable adds a fix to the error if a plan failed because /etc is read-only. If only the programs cannot be written,
// --prefix is the fix.
func (o *Options) immutable(err error, plan change.Plan) error {
	for _, f := range plan.Changed() {
		if strings.HasPrefix(files.OnNode(o.Root, f.Path), "/etc/") && errors.Is(err, syscall.EROFS) &&
			errors.Is(unix.Access(files.Below(o.Root, "/etc"), unix.W_OK), unix.EROFS) {
			return fmt.Errorf("%w: %s", err, platform.Immutable(o.Root))
		}
	}
	return err
}
