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

// sayLinked says which files have other names, which a change leaves as they are.
func sayLinked(stderr io.Writer, changed change.Plan) {
	for _, f := range changed {
		info, err := os.Stat(f.Path)
		if err != nil {
			continue // there is none yet
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
			fmt.Fprintf(stderr, "rdma-spec: %s is one of %d hard links to a file: the other links keep the previous content\n",
				f.Path, stat.Nlink)
		}
	}
}

// immutable says what to do instead where a plan is not carried out since /etc cannot be written. Where only programs
// cannot be written, --prefix helps.
func (o *Options) immutable(err error, plan change.Plan) error {
	for _, f := range plan.Changed() {
		if strings.HasPrefix(files.OnNode(o.Root, f.Path), "/etc/") && errors.Is(err, syscall.EROFS) &&
			errors.Is(unix.Access(files.Below(o.Root, "/etc"), unix.W_OK), unix.EROFS) {
			return fmt.Errorf("%w: %s", err, platform.Immutable(o.Root))
		}
	}
	return err
}
