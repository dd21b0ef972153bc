// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package files reads the files of a node below a root, which can be a copy. Links are resolved below it, and none
// leads out of it.
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
	maxLinks    = 40      // of a path, as in Linux
	mostMatched = 1 << 16 // entries of a directory, which can be a container's
)

// Tree is a node's files. Names are below its root, without a leading slash, and links lead where they lead on the
// node. It implements fs.FS.
type Tree struct {
	root *os.Root
	live bool // the links of /proc/PID/root count only there
	dir  bool // of a tree, which no link of it leads out of
}

// Open opens the files below a root; "" is the same as /.
func Open(root string) (Tree, error) {
	// The slash has anything but a directory refused: opening a FIFO would wait.
	// guard: links out of the root
	r, err := os.OpenRoot(root + "/")
	if err != nil {
		return Tree{}, fmt.Errorf("root %q: %w: set it to the directory that contains the node's sys and "+
			"dev", root, Cause(err))
	}
	return Tree{root: r, live: filepath.Clean(cmp.Or(root, "/")) == "/"}, nil
}

// Close closes the root.
func (t Tree) Close() error { return t.root.Close() }

// Live reports whether these are the files of the node that runs this, and not a copy.
func (t Tree) Live() bool { return t.live }

// Root is where the files are.
func (t Tree) Root() string { return t.root.Name() }

// Dir opens a directory as a tree of its own, for a caller that reads many of its files. Neither links to it nor
// those in it may be absolute, or lead out: those of sysfs such as device have to be followed from the top.
func (t Tree) Dir(name string) (Tree, error) {
	r, err := t.root.OpenRoot(name + "/") // a slash as in Open
	return Tree{root: r, dir: true}, err
}

// Open implements fs.FS.
func (t Tree) Open(name string) (fs.File, error) { return t.open(name) }

// open opens a regular file or a directory. It never opens anything else, which can wait, or have effects: an issm
// makes its port a subnet manager, a watchdog resets the node. So it looks at what it holds, and not at a name: in the
// files of a container, another file may have the name a moment later.
func (t Tree) open(name string) (*os.File, error) {
	held, err := resolved(t, name, hold(os.OpenFile), hold(t.root.OpenFile))
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }() // nothing was done with it
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: held.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), held.Name()), nil
}

// hold returns what holds on to a regular file or a directory without opening it.
func hold(open func(name string, flag int, mode fs.FileMode) (*os.File, error)) func(string) (*os.File, error) {
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
		_ = file.Close() // nothing was done with it
		if err == nil {
			err = &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("is %s, not a regular file", TypeName(info.Mode()))}
		}
		return nil, err
	}
}

// Stat implements fs.StatFS.
func (t Tree) Stat(name string) (fs.FileInfo, error) { return resolved(t, name, os.Stat, t.root.Stat) }

// Lstat implements fs.ReadLinkFS.
func (t Tree) Lstat(name string) (fs.FileInfo, error) {
	return resolved(t, name, os.Lstat, t.root.Lstat)
}

// Readlink returns where a link leads, as the link has it.
func (t Tree) Readlink(name string) (string, error) {
	return resolved(t, name, os.Readlink, t.root.Readlink)
}

// Read reads a regular file of at most so many bytes.
func (t Tree) Read(name string, most int64) ([]byte, error) {
	file, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if errors.Is(err, syscall.EISDIR) {
		err = &fs.PathError{Op: "read", Path: name, Err: errors.New("is a directory, not a regular file")}
	}
	// guard: long files
	if int64(len(text)) > most {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("is longer than %d bytes", most)}
	}
	return text, err
}

// List returns the names in a directory of at most so many. It is found as Directory finds it.
func (t Tree) List(name string, most int) ([]string, error) {
	dir, err := t.root.OpenFile(name, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // it was only read
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

// Links returns where the links in a directory of at most so many entries lead, by their names; what is no link leads
// to "". It opens nothing but the directory, which is found as Directory finds it, and costs a system call for each.
func (t Tree) Links(name string, most int) (map[string]string, error) {
	dir, err := t.root.OpenFile(name, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // it was only read
	names, err := namesIn(dir, most)
	targets := make(map[string]string, len(names))
	buffer := make([]byte, unix.PathMax)
	for _, name := range names {
		length, _ := unix.Readlinkat(int(dir.Fd()), name, buffer)
		targets[name] = string(buffer[:max(length, 0)])
	}
	return targets, err
}

// Match is fs.Glob that returns the first error of a directory that could not be listed, as one that is too large.
func (t Tree) Match(pattern string) ([]string, error) {
	listing := globbing{Tree: t}
	names, err := fs.Glob(&listing, pattern)
	return names, errors.Join(err, listing.err)
}

// globbing keeps the error that fs.Glob ignores. What is gone, or is not a directory, has no names.
type globbing struct {
	Tree
	err error
}

// ReadDir implements fs.ReadDirFS.
func (g *globbing) ReadDir(name string) (entries []fs.DirEntry, err error) {
	dir, err := g.open(name)
	if err == nil {
		defer func() { _ = dir.Close() }() // it was only read
		entries, err = dir.ReadDir(mostMatched + 1)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	switch {
	case errors.Is(err, io.EOF): // it is empty
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

// resolved does something with a name. Where the root refuses its links, because they are absolute, it does so with the
// name that they lead to.
func resolved[T any](t Tree, name string, live, below func(string) (T, error)) (T, error) {
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

// Follow returns where the links of a name lead, as a process takes them whose root this is: a name without links.
// visit, if there is one, gets each link on the way and what it says. The root of a process is not followed: it leads
// into a container.
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

// TypeName names what kind of file that is.
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

// Cause returns the error of a file or socket without the operation and the name, for a caller that names it in words
// of its own: the name in the error may be that of a temporary file. Other errors, and nil, stay as they are.
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
