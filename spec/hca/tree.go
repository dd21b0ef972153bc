// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

const (
	// maxAttribute is the largest page that Linux has: no attribute of sysfs
	// is longer than a page, and tar makes each one exactly that long.
	maxAttribute = 1 << 16
	// maxEntries bounds a folder. The largest that exist, nodes with a
	// thousand VFs or ports with GID tables of 1024, stay well below.
	maxEntries = 4096
)

// tree is a node's file system: the live one, or a copy below a folder. No
// path and no link leads out of it.
type tree struct {
	*os.Root
	live bool
}

func openTree(root string) (tree, error) {
	// The slash has anything but a folder refused: opening a FIFO would wait.
	// guard: links out of the root
	r, err := os.OpenRoot(root + "/")
	if err != nil {
		return tree{}, fmt.Errorf("root %q: %w: give the folder that holds the node's sys and dev", root, cause(err))
	}
	return tree{Root: r, live: root == "" || filepath.Clean(root) == "/"}, nil
}

func (t tree) close() { _ = t.Close() }

// folder opens a folder as a tree of its own: its links to outside, such as
// device, have to be followed from the top.
func (t tree) folder(name string) (tree, error) {
	r, err := t.OpenRoot(name + "/") // a slash as in openTree
	if err != nil {
		return tree{}, cause(err)
	}
	return tree{Root: r, live: t.live}, nil
}

// list returns the names in a folder in natural order; none if it is not there.
func (t tree) list(name string) ([]string, error) {
	dir, err := t.OpenFile(name+"/", os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	defer dir.Close() //nolint:errcheck // nothing is written
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	// guard: large folders
	if len(names) > maxEntries {
		return nil, fmt.Errorf("%s: more than %d entries", name, maxEntries)
	}
	slices.SortFunc(names, compareNatural)
	return names, nil
}

// read reads a regular file of at most limit bytes. It opens nothing else:
// opening a device can have effects (an issm makes its port a subnet manager).
func (t tree) read(name string, limit int64) ([]byte, error) {
	fi, err := t.Lstat(name)
	if err != nil {
		return nil, cause(err)
	}
	// guard: regular files
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("is %s, not a regular file", typeName(fi.Mode()))
	}
	f, err := t.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close() //nolint:errcheck // nothing is written
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	// guard: long files
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("is longer than %d bytes", limit)
	}
	return data, cause(err)
}

// linkBase returns the last part of a link's target, "" where there is no link.
func (t tree) linkBase(name string) string {
	target, err := t.Readlink(name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// typeName names what kind of file that is.
func typeName(m fs.FileMode) string {
	names := map[fs.FileMode]string{
		0:                                 "a regular file",
		fs.ModeDir:                        "a folder",
		fs.ModeSymlink:                    "a symbolic link",
		fs.ModeDevice | fs.ModeCharDevice: "a character device",
		fs.ModeDevice:                     "a block device",
		fs.ModeNamedPipe:                  "a FIFO",
		fs.ModeSocket:                     "a socket",
	}
	if name, ok := names[m.Type()]; ok {
		return name
	}
	return "of an unknown type"
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
