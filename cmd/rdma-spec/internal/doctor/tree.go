// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
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
)

const (
	// maxFile bounds what is read of a file.
	maxFile = 4 << 20
	// maxLinks bounds the links of a path, as in Linux.
	maxLinks = 40
)

// errUndeclared means that a check reads what it does not say that it reads, so that collect would not copy it.
var errUndeclared = errors.New("the check does not declare that it reads this")

// declared fails for a name or a pattern that the check does not declare, and for one that cannot be seen.
func (v *View) declared(name string) error {
	for _, pattern := range slices.Concat(v.check.Reads, Inventory) {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return v.node.sees(name)
		}
	}
	return v.refuse(name)
}

func (v *View) refuse(what string) error {
	err := fmt.Errorf("%s: %s: %w", v.check.ID, what, errUndeclared)
	if v.node.undeclared != nil {
		v.node.undeclared(err)
	}
	return err
}

// tree is a node's files. Names are below its root, without a leading slash, and links lead where they lead on the node: none leads out.
// It implements fs.FS.
type tree struct {
	root *os.Root
	live bool // the links of /proc/PID/root count only there
}

func openTree(root string) (tree, error) {
	r, err := os.OpenRoot(root + "/") // opening a FIFO would wait
	return tree{r, filepath.Clean(root) == "/"}, err
}

// Close closes the root.
func (t tree) Close() error { return t.root.Close() }

// Open implements fs.FS.
func (t tree) Open(name string) (fs.File, error) {
	if t.live {
		return os.Open("/" + name)
	}
	return resolved(t, name, t.root.Open)
}

// Stat implements fs.StatFS.
func (t tree) Stat(name string) (fs.FileInfo, error) {
	if t.live {
		return os.Stat("/" + name)
	}
	return resolved(t, name, t.root.Stat)
}

func (t tree) readlink(name string) (string, error) {
	if t.live {
		return os.Readlink("/" + name)
	}
	return resolved(t, name, t.root.Readlink)
}

// read reads a regular file, up to maxFile bytes. Opening anything else can wait, or have effects.
func (t tree) read(name string) ([]byte, error) {
	info, err := t.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	file, err := t.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// glob is fs.Glob that returns the first error of a folder that could not be listed.
func (t tree) glob(pattern string) ([]string, error) {
	listing := globbing{tree: t}
	names, err := fs.Glob(&listing, pattern)
	return names, errors.Join(err, listing.err)
}

// globbing keeps the error that fs.Glob ignores. What is gone, or is not a folder, has no names.
type globbing struct {
	tree
	err error
}

// ReadDir implements fs.ReadDirFS.
func (g *globbing) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(g.tree, name)
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESRCH)
	if err != nil && !gone && g.err == nil {
		g.err = err
	}
	return entries, err
}

// resolved does something with a name. Where the root refuses its links, because they are absolute, it does so with the name that they
// lead to.
func resolved[T any](t tree, name string, do func(string) (T, error)) (T, error) {
	value, err := do(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return value, err
	}
	folder, errLinks := t.resolve(path.Dir(name), new(int))
	if errLinks != nil {
		return value, errLinks
	}
	at := path.Join(folder, path.Base(name))
	if value, err = do(at); err == nil {
		return value, nil
	}
	if at, errLinks = t.resolve(at, new(int)); errLinks != nil {
		return value, errLinks
	}
	return do(at)
}

// resolve follows the links of a name as a process does whose root this is.
func (t tree) resolve(name string, links *int) (string, error) {
	at := "."
	for part := range strings.SplitSeq(name, "/") {
		next := path.Join(at, part)
		target, err := t.root.Readlink(next)
		if errors.Is(err, syscall.EINVAL) { // not a link
			at = next
			continue
		}
		if err != nil {
			return "", err
		}
		if magic, _ := path.Match("proc/*/root", next); magic || *links == maxLinks {
			return "", &fs.PathError{Op: "follow", Path: next, Err: syscall.ELOOP}
		}
		if !path.IsAbs(target) {
			target = path.Join("/", at, target)
		}
		*links++
		if at, err = t.resolve(strings.TrimPrefix(path.Clean(target), "/"), links); err != nil {
			return "", err
		}
	}
	return at, nil
}
