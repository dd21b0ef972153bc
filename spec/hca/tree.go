// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

const (
	// maxAttribute is the size of a sysfs page: no attribute is longer.
	maxAttribute = 4096
	// maxEntries bounds a folder. The largest that exist, nodes with a
	// thousand VFs or ports with GID tables of 256, stay well below.
	maxEntries = 4096
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
		t.copied.Close()
	}
}

func (t *tree) live() bool { return t.copied == nil }

// folder opens a folder, following links within the tree.
func (t *tree) folder(path string) (*os.Root, error) {
	var r *os.Root
	var err error
	if t.live() {
		r, err = os.OpenRoot("/" + path + "/.")
	} else {
		r, err = t.copied.OpenRoot(path + "/") // the slash: see openTree
	}
	return r, cause(err)
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
	defer dir.Close()
	names, err := listFolder(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return names, nil
}

// listFolder gives the names in a folder below dir in natural order.
func listFolder(dir *os.Root, name string) ([]string, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, cause(err)
	}
	if len(names) > maxEntries {
		return nil, fmt.Errorf("more than %d entries", maxEntries)
	}
	slices.SortFunc(names, compareNatural)
	return names, nil
}

// readFile reads a regular file of at most limit bytes. It opens nothing
// else: opening a device can have effects (an issm makes its port a subnet
// manager), opening a FIFO waits.
func readFile(dir *os.Root, name string, limit int) ([]byte, error) {
	fi, err := dir.Lstat(name)
	if err != nil {
		return nil, cause(err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("is %s, not a regular file", typeName(fi.Mode()))
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("is longer than %d bytes", limit)
	}
	return data, nil
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

// typeName names what kind of file that is.
func typeName(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsDir():
		return "a folder"
	case m&fs.ModeCharDevice != 0:
		return "a character device"
	case m&fs.ModeDevice != 0:
		return "a block device"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m.IsRegular():
		return "a regular file"
	}
	return "of an unknown type"
}
