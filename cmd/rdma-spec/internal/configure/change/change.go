// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change changes and restores files of a node. The package does not interpret the files' values.
//
// A Plan contains the new content of files, and can be printed as a unified diff. A Ledger applies plans for goals, and
// records its additions. To undo a goal, the Ledger removes exactly these additions, even if other tools have changed
// the rest of the file.
package change

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// File is the planned content of a file.
type File struct {
	Feature string // the feature that the file belongs to, if it is not the first goal's feature
	Path    string
	Before  []byte      // the content when the plan was made; nil if there was no file
	Content []byte      // the same as Before if the plan only relies on the file; nil if the file is removed
	Mode    fs.FileMode // of a file that does not exist; 0 for 0644
	// Parts are the feature's additions to a TOML file that others also write. The list is empty if the feature no
	// longer adds parts, and nil if the whole file belongs to the feature.
	Parts []record.Part
	// Editable is true if people edit the new file. A reversal then keeps the file.
	Editable bool
}

// Whole plans files whose new contents do not depend on the current contents.
func Whole(all ...File) (plan Plan, err error) {
	for _, f := range all {
		if f.Before, err = files.Content(f.Path); err != nil {
			return nil, err
		}
		plan = append(plan, f)
	}
	return plan, nil
}

// Plan is a list of planned files in the order of their changes. A file that names another file comes after that file.
type Plan []File

// Diff returns a unified diff of the original contents and the planned contents; "" if they are the same.
func (p Plan) Diff() string {
	var all strings.Builder
	for _, f := range p.Changed() {
		all.WriteString(diff(f.Path, f.Before, f.Content))
	}
	return all.String()
}

// Changed returns the files of a plan that do not yet have the planned content.
func (p Plan) Changed() Plan {
	return slices.DeleteFunc(slices.Clone(p), func(f File) bool { return files.Same(f.Before, f.Content) })
}

// Outdated returns an error if a file has changed since the plan was made.
func (p Plan) Outdated() error {
	for _, f := range p {
		now, err := files.Content(f.Path)
		if err == nil && !files.Same(now, f.Before) {
			err = fmt.Errorf("%s: %w", f.Path, atomicfile.ErrChanged)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// diff returns the unified diff of two contents of a file. A content is nil if the file does not exist.
func diff(path string, before, after []byte) string {
	from := path
	to := path
	if before == nil {
		from = "/dev/null"
	}
	if after == nil {
		to = "/dev/null"
	}
	if bytes.IndexByte(before, 0) >= 0 || bytes.IndexByte(after, 0) >= 0 {
		return fmt.Sprintf("Binary files %s and %s differ\n", from, to)
	}
	return udiff.Unified(from, to, string(before), string(after))
}
