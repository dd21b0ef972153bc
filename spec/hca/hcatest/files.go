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

// Files is a tree of files, by path relative to the tree's root. A path that ends with a slash is an empty directory. A
// value from Link makes the file a symbolic link, and the value FIFO makes the file a named pipe. Any other value is
// the content of a regular file.
type Files map[string]string

// FIFO is the value that represents a named pipe in Files.
const FIFO = "|"

const linkMark = "-> "

// Link returns the value that represents a symbolic link to target in Files.
func Link(target string) string { return linkMark + target }

// Write creates the files below dir, which must exist. Write never writes outside dir, even if symbolic links lead out
// of dir. Write returns an error if a file cannot be created.
func (f Files) Write(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	dirs := map[string][]string{} // paths by directory, so that each directory is opened only once
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

// write creates the files with these paths in a directory.
func (f Files) write(top *os.Root, dir string, paths []string) error {
	if err := top.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot create %s: %w", dir, err)
	}
	root, err := top.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot create %s: %w", dir, err)
	}
	defer func() { _ = root.Close() }()
	for _, p := range paths {
		if err := write(root, p, f[p]); err != nil {
			return fmt.Errorf("cannot create %s: %w", p, err)
		}
	}
	return nil
}

func write(dir *os.Root, p, value string) error {
	name := path.Base(p)
	target, link := strings.CutPrefix(value, linkMark)
	switch {
	case strings.HasSuffix(p, "/"):
		return nil // the directory exists already
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

// Under returns the sorted paths at and below dir.
func (f Files) Under(dir string) []string {
	var found []string
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	return found
}

// Without removes the files at and below the paths from f, and returns f.
func (f Files) Without(paths ...string) Files {
	for _, dir := range paths {
		dir = strings.TrimSuffix(dir, "/")
		maps.DeleteFunc(f, func(p, _ string) bool { return p == dir || strings.HasPrefix(p, dir+"/") })
	}
	return f
}

// With adds other's files to f, and returns f. Each added file replaces the files at and below its path.
func (f Files) With(other Files) Files {
	for p := range other {
		f.Without(p)
	}
	maps.Copy(f, other)
	return f
}

// Root writes the files to a temporary directory of the test, and returns the directory.
func (f Files) Root(t testing.TB) string {
	t.Helper()
	dir := scratch.Dir(t)
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
