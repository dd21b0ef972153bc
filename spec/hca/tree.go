// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tree is a node's file system: the live one, or a copy below a folder.
// Paths in it have no leading slash.
type tree struct {
	// copied confines every path to the copy. It is nil for the live node,
	// where sysfs is the kernel's own and / has no outside.
	copied *os.Root
}

func openTree(root string) (*tree, error) {
	if root == "" || filepath.Clean(root) == "/" {
		return &tree{}, nil
	}
	// "/." makes the kernel refuse what is no folder before it opens it: a
	// FIFO would wait for its other end.
	r, err := os.OpenRoot(root + "/.")
	if err != nil {
		return nil, fmt.Errorf("root %q: %w: give the folder that holds the node's sys and dev", root, cause(err))
	}
	return &tree{copied: r}, nil
}

func (t *tree) close() {
	if t.copied != nil {
		_ = t.copied.Close()
	}
}

func (t *tree) live() bool { return t.copied == nil }

// folder opens a folder, following links within the tree.
func (t *tree) folder(path string) (folder, error) {
	if t.live() {
		return openFolder(unix.AT_FDCWD, "/"+path, 0)
	}
	// guard: links out of the root
	f, err := t.copied.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return folder{}, cause(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return folder{fd: fd}, err
}

// lstat looks at what lies at path itself, following links only on the way.
func (t *tree) lstat(path string) (fs.FileInfo, error) {
	if t.live() {
		return os.Lstat("/" + path)
	}
	return t.copied.Lstat(path)
}

// list gives the names in a folder in natural order; none if it is not there.
func (t *tree) list(path string) ([]string, error) {
	dir, err := t.folder(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer dir.close()
	names, err := dir.list()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return names, nil
}

// cause drops the operation and path of a file error: the caller names the
// object in the words of sysfs.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
