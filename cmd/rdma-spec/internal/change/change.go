// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change changes files of a node, and puts them back. It knows nothing of what is in them.
//
// A Plan says what files are to become, and prints as a unified diff. A Ledger applies plans, remembers each change and
// the content before it, and reverts them.
package change

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
)

// File is what a file is to become.
type File struct {
	Feature string // on whose behalf, where it is not that of the whole plan
	Path    string
	Before  []byte      // what the plan was made from; nil where there was no file
	Content []byte      // the same as Before where the plan only relies on the file
	Mode    fs.FileMode // of a file that does not exist; 0 for 0644
}

// Whole plans files whose contents do not depend on what is there now.
func Whole(files ...File) (plan Plan, err error) {
	for _, f := range files {
		if f.Before, _, err = read(f.Path); err != nil {
			return nil, err
		}
		plan = append(plan, f)
	}
	return plan, nil
}

// same reports whether two contents of a file, nil where there is none, are the same.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// Plan is what files are to become, in this order: a file that names another one comes after it.
type Plan []File

// Diff returns a unified diff of what the plan was made from and the plan; nothing where they are the same.
func (p Plan) Diff() string {
	var all strings.Builder
	for _, f := range p.Changed() {
		all.WriteString(diff(f.Path, f.Before, f.Content, f.Before != nil, true))
	}
	return all.String()
}

// Changed returns the files of a plan that are not yet what they are to become.
func (p Plan) Changed() Plan {
	return slices.DeleteFunc(slices.Clone(p), func(f File) bool { return same(f.Before, f.Content) })
}

// Outdated reports an error where a file is no longer what the plan was made from.
func (p Plan) Outdated() error {
	for _, f := range p {
		now, _, err := read(f.Path)
		if err == nil && !same(now, f.Before) {
			err = fmt.Errorf("%s: %w", f.Path, atomicfile.ErrChanged)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads a file that may not exist.
func read(path string) (content []byte, exists bool, err error) {
	content, err = os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("cannot read %s: %w", path, oserror.Reason(err))
	}
	return content, true, nil
}

// diff returns the unified diff of two contents of a file, each of which may not exist.
func diff(path string, before, after []byte, existed, exists bool) string {
	from, to := path, path
	if !existed {
		from = "/dev/null"
	}
	if !exists {
		to = "/dev/null"
	}
	if bytes.IndexByte(before, 0) >= 0 || bytes.IndexByte(after, 0) >= 0 {
		return fmt.Sprintf("Binary files %s and %s differ\n", from, to)
	}
	return udiff.Unified(from, to, string(before), string(after))
}
