// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change changes files of a node, and puts them back. It knows nothing of what is in them.
//
// A Plan says what files are to become, and prints as a unified diff. A Ledger applies plans, remembers each change and the content
// before it, and reverts them.
package change

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
)

// File is what a file is to become.
type File struct {
	Feature string // on whose behalf, where it is not that of the whole plan
	Path    string
	Content []byte
	Mode    fs.FileMode // of a file that does not exist; 0 for 0644
}

// Plan is what files are to become, in this order: a file that names another one comes after it.
type Plan []File

// Diff returns a unified diff of the files of the node and the plan; nothing where they are the same.
func (p Plan) Diff() (string, error) {
	var all strings.Builder
	for _, f := range p {
		now, exists, err := read(f.Path)
		if err != nil {
			return "", err
		}
		if !exists || !bytes.Equal(now, f.Content) {
			all.WriteString(diff(f.Path, now, f.Content, exists, true))
		}
	}
	return all.String(), nil
}

// Changed returns the files of a plan that are not yet what they are to become.
func (p Plan) Changed() (Plan, error) {
	var left Plan
	for _, f := range p {
		now, exists, err := read(f.Path)
		if err != nil {
			return nil, err
		}
		if !exists || !bytes.Equal(now, f.Content) {
			left = append(left, f)
		}
	}
	return left, nil
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
