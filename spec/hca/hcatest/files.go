// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Files is a tree of files, by path from its top. A path that ends in a slash
// is an empty folder; a value made by Link is a symbolic link and FIFO is a
// named pipe; any other is the content of a regular file.
type Files map[string]string

// FIFO is the value of a named pipe.
const FIFO = "|"

const linkMark = "-> "

// Link is the value of a symbolic link to target.
func Link(target string) string { return linkMark + target }

// Write makes the files below dir, which must be a folder that is there.
func (f Files) Write(dir string) error {
	for _, p := range slices.Sorted(maps.Keys(f)) {
		at := filepath.Join(dir, path.Clean("/"+p))
		parent := at
		if !strings.HasSuffix(p, "/") {
			parent = filepath.Dir(at)
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if err := write(at, p, f[p]); err != nil {
			return fmt.Errorf("make %s: %w", p, err)
		}
	}
	return nil
}

func write(at, p, value string) error {
	switch target, link := strings.CutPrefix(value, linkMark); {
	case strings.HasSuffix(p, "/"):
		return nil
	case link:
		return os.Symlink(target, at)
	case value == FIFO:
		return syscall.Mkfifo(at, 0o644)
	default:
		return os.WriteFile(at, []byte(value), 0o644)
	}
}

// Under gives the paths at and below folder.
func (f Files) Under(folder string) []string {
	var found []string
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if p == folder || strings.HasPrefix(p, folder+"/") {
			found = append(found, p)
		}
	}
	return found
}

// Without removes what lies at and below the paths, and gives f back.
func (f Files) Without(paths ...string) Files {
	for _, folder := range paths {
		for _, p := range f.Under(strings.TrimSuffix(folder, "/")) {
			delete(f, p)
		}
	}
	return f
}

// With puts another's files on top, each in place of what lies at and below
// its path, and gives f back.
func (f Files) With(other Files) Files {
	for p := range other {
		f.Without(p)
	}
	maps.Copy(f, other)
	return f
}

// Root makes the files in a folder of the test's own and returns it.
func (f Files) Root(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
