// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package files reads a node's files below a root. The root is / on the live node, or the root of a copy of a node. The
// package resolves links as the node does, and does not follow links out of the root. It does not interpret the content
// of files.
package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxLinks    = 40      // the maximum number of links in a path, as in Linux
	mostMatched = 1 << 16 // the maximum number of entries in a directory; containers can write to some directories
)

// Tree provides a node's files. Names are relative to the Tree's root, without a leading slash. Links have the same
// targets as on the node. Tree implements fs.FS.
type Tree struct {
	root *os.Root
	live bool // whether the root is /; the links /proc/PID/root work only in such a Tree
	dir  bool // whether the root is a directory within another Tree
}

// Open opens the Tree at a root. The root "" means /. If the root is not a directory, or cannot be opened, Open returns
// an error.
func Open(root string) (Tree, error) {
	// The slash makes the kernel refuse files that are not directories. Without the slash, opening a FIFO would block.
	// guard: links out of the root
	r, err := os.OpenRoot(root + "/")
	if err != nil {
		return Tree{}, fmt.Errorf("root %q: %w: set the root to the directory that contains the node's /sys "+
			"and /dev", root, Cause(err))
	}
	return Tree{root: r, live: filepath.Clean(cmp.Or(root, "/")) == "/"}, nil
}

// Close closes the root.
func (t Tree) Close() error { return t.root.Close() }

// Live reports whether the Tree is the live node at /, not a copy of a node.
func (t Tree) Live() bool { return t.live }

// Root returns the path of the root.
func (t Tree) Root() string { return t.root.Name() }

// Dir opens a directory as a separate Tree, for a caller that reads many files in the directory. Links to the
// directory, and links in the directory, must be relative, and must not lead out of the directory. To follow other
// links, such as the link device in sysfs, use the original Tree.
func (t Tree) Dir(name string) (Tree, error) {
	r, err := t.root.OpenRoot(name + "/") // the slash makes the kernel refuse other files: see Open
	return Tree{root: r, dir: true}, err
}

// Open implements fs.FS.
func (t Tree) Open(name string) (fs.File, error) { return t.open(name) }

// open opens a regular file or a directory. It never opens a file of another type, because opening such a file can
// block or have side effects. For example, opening an issm device makes its port a subnet manager, and opening a
// watchdog resets the node. open checks the type of a descriptor, not of a name, because a container can replace the
// file between the check and the opening.
func (t Tree) open(name string) (*os.File, error) {
	held, err := callResolved(t, name, pathOpener(os.OpenFile), pathOpener(t.root.OpenFile))
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }() // the descriptor was not used
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: held.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), held.Name()), nil
}

// pathOpener returns a function that returns a descriptor of a regular file or a directory without opening the file for
// reading (O_PATH).
func pathOpener(open func(name string, flag int, mode fs.FileMode) (*os.File, error)) func(string) (*os.File, error) {
	return func(name string) (*os.File, error) {
		file, err := open(name, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		// guard: regular files
		if err == nil && (info.Mode().IsRegular() || info.IsDir()) {
			return file, nil
		}
		_ = file.Close() // the descriptor was not used
		if err == nil {
			err = &fs.PathError{Op: "open", Path: name,
				Err: fmt.Errorf("the path is %s, not a regular file", TypeName(info.Mode()))}
		}
		return nil, err
	}
}

// Stat implements fs.StatFS.
func (t Tree) Stat(name string) (fs.FileInfo, error) {
	return callResolved(t, name, os.Stat, t.root.Stat)
}

// Lstat implements fs.ReadLinkFS.
func (t Tree) Lstat(name string) (fs.FileInfo, error) {
	return callResolved(t, name, os.Lstat, t.root.Lstat)
}

// Readlink returns a link's target exactly as the link contains the target.
func (t Tree) Readlink(name string) (string, error) {
	return callResolved(t, name, os.Readlink, t.root.Readlink)
}

// Read reads a regular file. If the file contains more bytes than most, Read returns an error.
func (t Tree) Read(name string, most int64) ([]byte, error) {
	file, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened only for reading
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if errors.Is(err, syscall.EISDIR) {
		err = &fs.PathError{Op: "read", Path: name, Err: errors.New("the path is a directory, not a regular file")}
	}
	// guard: long files
	if int64(len(text)) > most {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("the file is longer than %d bytes", most)}
	}
	return text, err
}

// List returns the names of the entries in a directory. If the number of entries is greater than most, List returns an
// error.
func (t Tree) List(name string, most int) ([]string, error) {
	dir, err := t.root.OpenFile(name, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // opened only for reading
	return namesIn(dir, most)
}

func namesIn(dir *os.File, most int) ([]string, error) {
	names, err := dir.Readdirnames(most + 1)
	// guard: large directories
	if len(names) > most {
		return nil, fmt.Errorf("more than %d entries", most)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// Links returns the targets of the links in a directory, by the names of the links. If an entry is not a link, its
// target is "". If the number of entries is greater than most, Links returns an error. Links opens only the directory,
// and makes one system call for each entry.
func (t Tree) Links(name string, most int) (map[string]string, error) {
	dir, err := t.root.OpenFile(name, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // opened only for reading
	names, err := namesIn(dir, most)
	targets := make(map[string]string, len(names))
	buffer := make([]byte, unix.PathMax)
	for _, name := range names {
		length, _ := unix.Readlinkat(int(dir.Fd()), name, buffer)
		targets[name] = string(buffer[:max(length, 0)])
	}
	return targets, err
}

// Match works like fs.Glob, but also returns the first error from listing a directory, for example an error that the
// directory is too large.
func (t Tree) Match(pattern string) ([]string, error) {
	listing := globbing{Tree: t}
	names, err := fs.Glob(&listing, pattern)
	return names, errors.Join(err, listing.err)
}

// globbing stores the first error that fs.Glob ignores. For a path that is missing, or that is not a directory,
// globbing stores no error.
type globbing struct {
	Tree
	err error
}

// ReadDir implements fs.ReadDirFS.
func (g *globbing) ReadDir(name string) (entries []fs.DirEntry, err error) {
	dir, err := g.open(name)
	if err == nil {
		defer func() { _ = dir.Close() }() // opened only for reading
		entries, err = dir.ReadDir(mostMatched + 1)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	switch {
	case errors.Is(err, io.EOF): // the directory is empty
		err = nil
	case len(entries) > mostMatched:
		entries = nil
		err = fmt.Errorf("%s has more than %d entries", name, mostMatched)
	}
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESRCH)
	if err != nil && !gone && g.err == nil {
		g.err = err
	}
	return entries, err
}

// callResolved calls live with a name if the root is /, or below with the name if the root is another directory. If the
// root refuses links in the name because the links are absolute, callResolved calls below with the resolved name.
func callResolved[T any](t Tree, name string, live, below func(string) (T, error)) (T, error) {
	if t.live {
		return live("/" + name)
	}
	value, err := below(name)
	if err == nil || t.dir || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return value, err
	}
	dir, errLinks := t.Follow(path.Dir(name), nil)
	if errLinks != nil {
		return value, errLinks
	}
	at := path.Join(dir, path.Base(name))
	if value, err = below(at); err == nil {
		return value, nil
	}
	at, errLinks = t.Follow(at, nil)
	if errLinks != nil {
		return value, errLinks
	}
	return below(at)
}

// Follow resolves all links in a name as a process with this root directory does, and returns a name without links. If
// visit is not nil, Follow calls visit with each link and the link's target. Follow does not follow the link
// /proc/PID/root, which leads into a container. For such a link, Follow returns ELOOP.
func (t Tree) Follow(name string, visit func(link, target string)) (string, error) {
	at := "."
	parts := strings.Split(name, "/")
	links := 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		if part == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		target, err := t.root.Readlink(next)
		if errors.Is(err, syscall.EINVAL) { // not a link
			at = next
			continue
		}
		if err != nil {
			return "", err
		}
		if magic, _ := path.Match("proc/*/root", next); magic || links == maxLinks {
			return "", &fs.PathError{Op: "follow", Path: next, Err: syscall.ELOOP}
		}
		links++
		if visit != nil {
			visit(next, target)
		}
		if path.IsAbs(target) {
			at = "."
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return at, nil
}

// TypeName returns the type of a file with an article, for messages, such as "a directory".
func TypeName(m fs.FileMode) string {
	names := map[fs.FileMode]string{
		0:                                 "a regular file",
		fs.ModeDir:                        "a directory",
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

// Cause returns the error of a file or socket without the operation and the name, for callers that add their own
// operation and name. The name in the error can be the name of a temporary file. Cause returns all other errors, and
// nil, unchanged.
func Cause(err error) error {
	var said syscall.Errno
	var pe *fs.PathError
	switch {
	case errors.As(err, &said):
		return said
	case errors.As(err, &pe):
		return pe.Err
	}
	return err
}
