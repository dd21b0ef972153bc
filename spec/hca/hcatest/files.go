// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// Write makes the files below dir, which must be a folder that is there. It
// never writes outside of it, wherever the links lead.
func (f Files) Write(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if err := write(root, p, f[p]); err != nil {
			return fmt.Errorf("make %s: %w", p, err)
		}
	}
	return nil
}

func write(root *os.Root, p, value string) error {
	if strings.HasSuffix(p, "/") {
		return root.MkdirAll(p, 0o755)
	}
	parent := path.Dir(p)
	if err := root.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	target, link := strings.CutPrefix(value, linkMark)
	switch {
	case link:
		return root.Symlink(target, p)
	case value == FIFO:
		dir, err := root.Open(parent)
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		return unix.Mkfifoat(int(dir.Fd()), path.Base(p), 0o644)
	default:
		return root.WriteFile(p, []byte(value), 0o644)
	}
}

// Under returns the paths at and below folder.
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

// Dir returns a folder of the test's own, in memory where the machine has
// /dev/shm: a node is a hundred small files, which on a busy disk take longer
// than the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hcatest")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Root makes the files in a folder of the test's own and returns it.
func (f Files) Root(t testing.TB) string {
	t.Helper()
	dir := Dir(t)
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
