// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
)

// View is a check's view of a node: the snapshot, with only the files that the check declares.
type View struct {
	*node.Snapshot
	Declared *Check
}

// Read returns a file's text. Names are below the root, without a leading slash.
func (v *View) Read(name string) (string, error) {
	if err := v.declared(name); err != nil {
		return "", err
	}
	text, err := v.Files.Read(name, archive.MaxFile)
	return string(text), err
}

// Glob returns the names that match a pattern, sorted. The error means that a directory could not be listed.
func (v *View) Glob(pattern string) ([]string, error) {
	if err := v.declared(pattern); err != nil {
		return nil, err
	}
	return v.Files.Match(pattern)
}

// Any reports whether a name matches a pattern.
func (v *View) Any(pattern string) bool {
	names, _ := v.Glob(pattern) // files that cannot be listed count as missing
	return len(names) > 0
}

// Readlink returns the target of a link, as stored in the link.
func (v *View) Readlink(name string) (string, error) {
	if err := v.declared(name); err != nil {
		return "", err
	}
	return v.Files.Readlink(name)
}

// Exists reports whether a file or directory exists. The error means that the answer is unknown.
func (v *View) Exists(name string) (bool, error) {
	if err := v.declared(name); err != nil {
		return false, err
	}
	_, err := v.Files.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Attribute returns the text of a sysfs file, or "" if the file cannot be read.
func Attribute(v *View, name string) string {
	text, _ := v.Read(name)
	return strings.TrimSpace(strings.TrimRight(text, "\x00"))
}

// ErrUndeclared means that a check reads a file that the check does not declare, so collect would not copy the file.
var ErrUndeclared = errors.New("the check does not declare this file in Reads")

// declared fails for a name or a pattern that the check does not declare, or that is not visible.
func (v *View) declared(name string) error {
	for _, pattern := range slices.Concat(v.Declared.Reads, node.Inventory) {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return v.Reaches(name)
		}
	}
	err := fmt.Errorf("%s: %s: %w", v.Declared.ID, name, ErrUndeclared)
	if v.Undeclared != nil {
		v.Undeclared(err)
	}
	return err
}
