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
	// top is the copy's folder.
	top folder
	// stepwise is set where the kernel cannot confine a path itself.
	stepwise bool
}

func openTree(root string) (*tree, error) {
	if root == "" || filepath.Clean(root) == "/" {
		return &tree{}, nil
	}
	top, err := openFolder(unix.AT_FDCWD, root, 0)
	if err != nil {
		return nil, fmt.Errorf("root %q: %w: give the folder that holds the node's sys and dev", root, err)
	}
	copied, err := os.OpenRoot(root)
	if err != nil {
		top.close()
		return nil, fmt.Errorf("root %q: %w", root, cause(err))
	}
	return &tree{copied: copied, top: top}, nil
}

func (t *tree) close() {
	if t.copied != nil {
		_ = t.copied.Close()
		t.top.close()
	}
}

func (t *tree) live() bool { return t.copied == nil }

var errOutside = errors.New("leads out of the root")

// folder opens a folder, following links within the tree.
func (t *tree) folder(path string) (folder, error) {
	if t.live() {
		return openFolder(unix.AT_FDCWD, "/"+path, 0)
	}
	if !t.stepwise {
		f, err := openBeneath(t.top, path)
		switch {
		case errors.Is(err, unix.EXDEV):
			return folder{}, errOutside
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EAGAIN):
			// A kernel before 5.6, a seccomp filter that does not know the
			// call, a rename at the same time.
		default:
			return f, err
		}
	}
	// guard: links out of the root, stepwise
	f, err := t.copied.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		var errno unix.Errno
		if !errors.As(err, &errno) {
			return folder{}, errOutside
		}
		return folder{}, errno
	}
	defer func() { _ = f.Close() }()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return folder{fd: fd}, err
}

// openBeneath opens a folder below top in one step. A DaemonSet reads its node
// through mounts, as a copy, for every container: package os looks at each
// part of a path, which takes three times as long.
func openBeneath(top folder, path string) (folder, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat2(top.fd, path, &unix.OpenHow{
			Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			// guard: links out of the root
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
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
