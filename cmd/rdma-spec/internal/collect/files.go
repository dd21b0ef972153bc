// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// files are a node's files. The taker follows links itself, so no name has a link in it, and none leads out of the
// root.
type files struct {
	root   string
	isProc bool // proc is the kernel's, and not a copy
}

func openFiles(root string) files {
	var on unix.Statfs_t
	err := unix.Statfs(filepath.Join(root, "proc"), &on)
	return files{root: root, isProc: err == nil && on.Type == unix.PROC_SUPER_MAGIC}
}

func (f files) path(name string) string { return filepath.Join(f.root, name) }

func (f files) lstat(name string) (fs.FileInfo, error) { return os.Lstat(f.path(name)) }

func (f files) readlink(name string) (string, error) { return os.Readlink(f.path(name)) }

// open opens a regular file, and no link that has just taken its place.
func (f files) open(name string) (*os.File, error) {
	return os.OpenFile(f.path(name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
}

// list returns the names in a folder, sorted.
func (f files) list(name string) ([]string, error) {
	folder, err := os.Open(f.path(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }() // it was only read
	names, err := folder.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

var processRoot = regexp.MustCompile(`^proc/[0-9]+/root(/|$)`)

// magic reports whether a name is the root of a process: a link that leads into a container, whatever target it has.
func (f files) magic(name string) bool { return f.isProc && name == top(name) && name != "." }

// top returns the root that a name's absolute links start from: that of the container that it is in, else the node's.
func top(name string) string {
	if root := processRoot.FindString(name); root != "" {
		return strings.TrimSuffix(root, "/")
	}
	return "."
}

// above returns the folder that a name is in; a root is in itself.
func above(name string) string {
	if name == top(name) {
		return name
	}
	return path.Dir(name)
}

// inside returns a link's target relative to its folder, and below the root that the link is in, as the kernel takes it
// there.
func inside(link, target string) string {
	folder := path.Join("/", strings.TrimPrefix(path.Dir(link), strings.TrimPrefix(top(link), ".")))
	if !path.IsAbs(target) {
		if depth := strings.Count(strings.TrimSuffix(folder, "/"), "/"); strings.Count(target+"/", "../") <= depth {
			return target
		}
		target = path.Join(folder, target)
	}
	relative, err := filepath.Rel(folder, path.Clean(target))
	if err != nil {
		return "." // both are absolute
	}
	return relative
}
