// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect copies part of a node's file system. On another machine, programs that read the copy report the same
// results as on the node.
//
// Patterns select the files. Links stay links. Device nodes, sockets, and programs become empty files, and device nodes
// also become rows in the device table. Secrets are masked. The package does not interpret the files' contents.
package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// atOnce is the number of files that are read at the same time, so that the timeouts of many files do not add up.
const atOnce = 16

// Take copies the node's files that match the patterns, and returns them by name. It also returns the files that it
// cannot copy, with the reasons. The patterns are those of path.Match, relative to the root and without a leading
// slash. A pattern without a match is not an error. A file that cannot be read within the timeout is missing: if an HCA
// is faulty, processes that read the files of its ports block.
func Take(ctx context.Context, from files.Tree, timeout time.Duration,
	patterns []string) (copied map[string]archive.Entry, missing []string, err error) {
	t := &collector{files: from, found: map[string]archive.Entry{}, missing: map[string]bool{}}
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		t.match(".", strings.Split(pattern, "/"))
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
	}
	t.read(ctx, timeout)
	if len(t.devices) > 0 { // a copy contains no device nodes, and the copy's own table is copied
		slices.Sort(t.devices)
		t.found[hca.DeviceTable] = archive.Entry{Name: hca.DeviceTable,
			Content: []byte("# path type mode uid gid major minor\n" + strings.Join(t.devices, ""))}
	}
	return t.found, slices.Sorted(maps.Keys(t.missing)), ctx.Err()
}

// collector finds the files that match patterns. Its names contain no links.
type collector struct {
	files   files.Tree
	found   map[string]archive.Entry
	regular []string // the regular files among them
	devices []string // the lines of the device table
	missing map[string]bool
}

// match follows the parts of a pattern, starting at a directory.
func (t *collector) match(dir string, parts []string) {
	switch {
	case len(parts) == 0:
		return
	case !strings.ContainsAny(parts[0], `*?[\`):
		t.step(path.Join(dir, parts[0]), parts[1:])
		return
	}
	names, err := t.files.List(dir, archive.MaxEntries)
	if err != nil {
		t.miss(dir, err)
	}
	for _, name := range names {
		if matches, _ := path.Match(parts[0], name); matches { // the pattern is sound
			t.step(path.Join(dir, name), parts[1:])
		}
	}
}

// step adds a name and the links that it passes through, and continues with the rest of the pattern at the links'
// target.
func (t *collector) step(name string, rest []string) {
	at := name
	info, err := t.files.Lstat(at)
	if err == nil && info.Mode().Type() == fs.ModeSymlink { // only then: a GID table has thousands of names
		at, err = t.files.Follow(name, func(link, target string) {
			t.add(archive.Entry{Name: link, Link: targetInRoot(link, target)})
		})
		if err != nil {
			t.miss(name, err)
			return
		}
		info, err = t.files.Lstat(at)
	}
	never, _ := path.Match("proc/*/environ", at) // even if a pattern asks for it
	never = never || path.Base(at) == "ifalias"  // which contains text that an administrator chose
	switch {
	case err != nil:
		t.miss(at, err)
	case info.IsDir():
		t.add(archive.Entry{Name: at, Dir: true})
		t.match(at, rest)
	case len(rest) > 0: // the pattern expects a directory here
	case never, strings.HasPrefix(at, "sys/") && info.Mode().Perm()&0o444 == 0: // a write-only attribute
	case !t.add(archive.Entry{Name: at}), isProgram(at), isProgram(name):
	case info.Mode().IsRegular():
		t.regular = append(t.regular, at)
	case strings.HasPrefix(at, "dev/"): // opening it could wait, or have effects
		t.devices = append(t.devices, row(at, info)...)
	}
}

// isProgram reports whether a file is a program, judging by its directory. Only the program's existence matters, and a
// program can be larger than an archive's largest file.
func isProgram(name string) bool {
	return strings.HasPrefix(name, "opt/") || path.Base(path.Dir(name)) == "bin"
}

// targetInRoot returns a link's target relative to its directory and below the root, as the kernel takes it there.
func targetInRoot(link, target string) string {
	if !path.IsAbs(target) {
		if strings.Count(target+"/", "../") <= strings.Count(link, "/") {
			return target
		}
		target = path.Join("/", path.Dir(link), target)
	}
	relative, _ := filepath.Rel(path.Join("/", path.Dir(link)), path.Clean(target)) // both are absolute
	return relative
}

// add adds an entry if it is new, and reports whether it is.
func (t *collector) add(e archive.Entry) bool {
	if _, known := t.found[e.Name]; known || e.Name == "." {
		return false
	}
	t.found[e.Name] = e
	return true
}

// miss records that a file cannot be copied. It ignores files that have disappeared, and attributes without a value,
// such as the speed of an interface that is down.
func (t *collector) miss(name string, err error) {
	for _, none := range []error{fs.ErrNotExist, syscall.ESRCH, syscall.ENOTDIR, syscall.EINVAL, syscall.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return
		}
	}
	t.missing[name+": "+files.Cause(err).Error()] = true
}

// read reads the regular files, each with its own timeout. A read that never returns occupies a goroutine, but does not
// delay other files.
func (t *collector) read(ctx context.Context, timeout time.Duration) {
	var reading errgroup.Group
	reading.SetLimit(atOnce)
	var mu sync.Mutex
	for _, name := range t.regular {
		reading.Go(func() error {
			text, err := node.Within(ctx, timeout, "the file could not be read", func(context.Context) ([]byte, error) {
				return t.files.Read(name, archive.MaxFile)
			})
			mu.Lock()
			defer mu.Unlock()
			t.found[name] = archive.Entry{Name: name, Content: text}
			if err != nil {
				delete(t.found, name)
				t.miss(name, err)
			}
			return nil
		})
	}
	_ = reading.Wait() // unreadable files are listed as missing
}

// row returns the line of the device table for a special file, or nil if the table does not support the file's type.
func row(name string, info fs.FileInfo) []string {
	kind := map[fs.FileMode]string{fs.ModeDevice | fs.ModeCharDevice: "c", fs.ModeDevice: "b",
		fs.ModeNamedPipe: "p"}[info.Mode().Type()]
	owner, ok := info.Sys().(*syscall.Stat_t)
	if kind == "" || !ok {
		return nil
	}
	return []string{fmt.Sprintf("/%s %s %04o %d %d %d %d\n",
		name, kind, info.Mode().Perm(), owner.Uid, owner.Gid, unix.Major(owner.Rdev), unix.Minor(owner.Rdev))}
}
