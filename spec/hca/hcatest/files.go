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

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Files is a tree of files, by path from its top. A path that ends in a slash
// is an empty directory; a value made by Link is a symbolic link and FIFO is a
// named pipe; any other is the content of a regular file.
type Files map[string]string

// FIFO is the value of a named pipe.
const FIFO = "|"

const linkMark = "-> "

// Link is the value of a symbolic link to target.
func Link(target string) string { return linkMark + target }

// Write makes the files below dir, which must be a directory that is there. It
// never writes outside of it, wherever the links lead.
func (f Files) Write(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	dirs := map[string][]string{} // a file is made from its directory, which is looked for once
	for p := range f {
		dirs[path.Dir(p)] = append(dirs[path.Dir(p)], p)
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := f.write(root, dir, dirs[dir]); err != nil {
			return err
		}
	}
	return nil
}

// write makes the files of a directory.
func (f Files) write(top *os.Root, dir string, paths []string) error {
	if err := top.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	root, err := top.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	defer func() { _ = root.Close() }()
	for _, p := range paths {
		if err := write(root, p, f[p]); err != nil {
			return fmt.Errorf("make %s: %w", p, err)
		}
	}
	return nil
}

func write(dir *os.Root, p, value string) error {
	name := path.Base(p)
	target, link := strings.CutPrefix(value, linkMark)
	switch {
	case strings.HasSuffix(p, "/"):
		return nil // it is the directory
	case link:
		return dir.Symlink(target, name)
	case value == FIFO:
		dir, err := dir.Open(".")
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		return unix.Mkfifoat(int(dir.Fd()), name, 0o644)
	default:
		return dir.WriteFile(name, []byte(value), 0o644)
	}
}

// Under returns the paths at and below directory.
func (f Files) Under(dir string) []string {
	var found []string
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	return found
}

// Without removes what lies at and below the paths, and gives f back.
func (f Files) Without(paths ...string) Files {
	for _, dir := range paths {
		dir = strings.TrimSuffix(dir, "/")
		maps.DeleteFunc(f, func(p, _ string) bool { return p == dir || strings.HasPrefix(p, dir+"/") })
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

// Root makes the files in a directory of the test's own and returns it.
func (f Files) Root(t testing.TB) string {
	t.Helper()
	dir := scratch.Dir(t)
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
