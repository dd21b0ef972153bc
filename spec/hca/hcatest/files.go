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
	folders := map[string][]string{} // a file is made from its directory, which is looked for once
	for p := range f {
		folders[path.Dir(p)] = append(folders[path.Dir(p)], p)
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := f.write(root, folder, folders[folder]); err != nil {
			return err
		}
	}
	return nil
}

// write makes the files of a directory.
func (f Files) write(top *os.Root, folder string, paths []string) error {
	if err := top.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", folder, err)
	}
	root, err := top.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("make %s: %w", folder, err)
	}
	defer func() { _ = root.Close() }()
	for _, p := range paths {
		if err := write(root, p, f[p]); err != nil {
			return fmt.Errorf("make %s: %w", p, err)
		}
	}
	return nil
}

func write(folder *os.Root, p, value string) error {
	name := path.Base(p)
	target, link := strings.CutPrefix(value, linkMark)
	switch {
	case strings.HasSuffix(p, "/"):
		return nil // it is the directory
	case link:
		return folder.Symlink(target, name)
	case value == FIFO:
		dir, err := folder.Open(".")
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		return unix.Mkfifoat(int(dir.Fd()), name, 0o644)
	default:
		return folder.WriteFile(name, []byte(value), 0o644)
	}
}

// Under returns the paths at and below directory.
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
		folder = strings.TrimSuffix(folder, "/")
		maps.DeleteFunc(f, func(p, _ string) bool { return p == folder || strings.HasPrefix(p, folder+"/") })
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
	dir := scratch.Folder(t)
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
