// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change changes a node's files, and restores them. It does not know what their values mean.
//
// A Plan contains the new content of files, and can be printed as a unified diff. A Ledger applies plans for goals, and
// records what it adds. To undo a goal, it removes exactly these additions, even if others have changed the rest of a
// file.
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

// File is what a file is to become.
type File struct {
	Feature string // on whose behalf, where it is not that of the first goal
	Path    string
	Before  []byte      // what the plan was made from; nil where there was no file
	Content []byte      // the same as Before where the plan only relies on the file; nil where the file goes
	Mode    fs.FileMode // of a file that does not exist; 0 for 0644
	// Parts are what the feature adds to a TOML file that others write, too. Empty where it adds nothing any longer, and
	// nil where the file is the feature's as a whole.
	Parts []record.Part
	// Editable says that people are to edit a new file: then it is theirs, and taking the change back leaves it.
	Editable bool
}

// Whole plans files whose contents do not depend on what is there now.
func Whole(all ...File) (plan Plan, err error) {
	for _, f := range all {
		if f.Before, err = files.Content(f.Path); err != nil {
			return nil, err
		}
		plan = append(plan, f)
	}
	return plan, nil
}

// Plan is what files are to become, in this order: a file that names another one comes after it.
type Plan []File

// Diff returns a unified diff of what the plan was made from and the plan; nothing where they are the same.
func (p Plan) Diff() string {
	var all strings.Builder
	for _, f := range p.Changed() {
		all.WriteString(diff(f.Path, f.Before, f.Content))
	}
	return all.String()
}

// Changed returns the files of a plan that are not yet what they are to become.
func (p Plan) Changed() Plan {
	return slices.DeleteFunc(slices.Clone(p), func(f File) bool { return files.Same(f.Before, f.Content) })
}

// Outdated reports an error where a file is no longer what the plan was made from.
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

// diff returns the unified diff of two contents of a file, nil where there is none.
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
