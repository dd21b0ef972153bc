// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// maxAttribute is the largest page that Linux has: no attribute of sysfs
	// is longer than a page, and tar makes each one exactly that long.
	maxAttribute = 1 << 16
	// maxEntries bounds a folder. The largest that exist, nodes with a
	// thousand VFs or ports with GID tables of 256, stay well below.
	maxEntries = 4096
)

// folder is an open folder. What it opens are its own entries, never through
// a link: below a device's folder sysfs has none but those to other devices.
// So it cannot leave its tree. It calls the kernel directly, because package
// os makes about twice the system calls, and VerbsNumbers is called for many
// a container.
type folder struct{ fd int }

// openFolder opens name below at if it is a folder, and nothing else: opening
// a FIFO would wait.
func openFolder(at int, name string, flags int) (folder, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
		return err
	})
	return folder{fd: fd}, err
}

func (f folder) close() { _ = unix.Close(f.fd) }

// folder opens the folder of that name in f.
//
// guard: links below a device
func (f folder) folder(name string) (folder, error) {
	return openFolder(f.fd, name, unix.O_NOFOLLOW)
}

// list gives the names in f in natural order.
func (f folder) list() ([]string, error) {
	// Opened anew, since a listing moves the descriptor.
	again, err := f.folder(".")
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(again.fd), "")
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, cause(err)
	}
	// guard: large folders
	if len(names) > maxEntries {
		return nil, fmt.Errorf("more than %d entries", maxEntries)
	}
	slices.SortFunc(names, compareNatural)
	return names, nil
}

// read reads the regular file of that name, of at most limit bytes. It opens
// nothing else: opening a device can have effects (an issm makes its port a
// subnet manager).
func (f folder) read(name string, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return nil, err
	}
	// guard: regular files
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("is %s, not a regular file", typeName(fileType(st.Mode)))
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(f.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	data := make([]byte, 64)
	for have := 0; ; data = append(data, make([]byte, len(data))...) {
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Read(fd, data[have:])
			return err
		})
		if err != nil {
			return nil, err
		}
		have += n
		// guard: long files
		if have > limit {
			return nil, fmt.Errorf("is longer than %d bytes", limit)
		}
		// A regular file gives less than was asked for only at its end.
		if have < len(data) {
			return data[:have], nil
		}
	}
}

// link gives the target of the link of that name.
func (f folder) link(name string) (string, error) {
	buf := make([]byte, maxAttribute)
	n, err := unix.Readlinkat(f.fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// retry calls again what a signal interrupted: the Go runtime sends itself
// some.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// fileType turns the type in a stat into Go's.
func fileType(mode uint32) fs.FileMode {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	case unix.S_IFCHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		return fs.ModeDevice
	case unix.S_IFIFO:
		return fs.ModeNamedPipe
	case unix.S_IFSOCK:
		return fs.ModeSocket
	}
	return fs.ModeIrregular
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
