// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect copies a part of a node's file system, so that programs that read the copy on another machine give
// the same results as on the node.
//
// Patterns select the files. Links stay links, device nodes and sockets become empty files and rows in the device
// table, programs become empty files, and secrets are masked. The package does not know what the files mean.
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

// atOnce is how many files are read at a time, so that many that block do not add up.
const atOnce = 16

// Take copies what the patterns match in a node's files, by their names; missing is what it cannot copy, and why. The
// patterns are those of path.Match, below the root and without a leading slash. What a pattern does not match is not on
// the node, which is not an error. A file that takes longer than the timeout is missing: a sick HCA blocks who reads
// its ports.
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
	if len(t.devices) > 0 { // a copy has none, and its own table is copied
		slices.Sort(t.devices)
		t.found[hca.DeviceTable] = archive.Entry{Name: hca.DeviceTable,
			Content: []byte("# path type mode uid gid major minor\n" + strings.Join(t.devices, ""))}
	}
	return t.found, slices.Sorted(maps.Keys(t.missing)), ctx.Err()
}

// collector finds what patterns match. All names in it are without links.
type collector struct {
	files   files.Tree
	found   map[string]archive.Entry
	regular []string // the regular files among them
	devices []string // the lines of the device table
	missing map[string]bool
}

// match follows the parts of a pattern from a directory on.
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

// step takes a name along, and the links that it leads through, and goes on with the rest of the pattern where they
// lead.
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
	never, _ := path.Match("proc/*/environ", at) // whatever asks for it
	never = never || path.Base(at) == "ifalias"  // which has what an administrator likes
	switch {
	case err != nil:
		t.miss(at, err)
	case info.IsDir():
		t.add(archive.Entry{Name: at, Dir: true})
		t.match(at, rest)
	case len(rest) > 0: // a file where the pattern has a directory
	case never, strings.HasPrefix(at, "sys/") && info.Mode().Perm()&0o444 == 0: // an attribute that is only written
	case !t.add(archive.Entry{Name: at}), isProgram(at), isProgram(name):
	case info.Mode().IsRegular():
		t.regular = append(t.regular, at)
	case strings.HasPrefix(at, "dev/"): // opening it could wait, or have effects
		t.devices = append(t.devices, row(at, info)...)
	}
}

// isProgram reports whether a file is a program, by where it is. Only its existence counts, and it can be larger than
// an archive's files.
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

// add takes an entry along, once.
func (t *collector) add(e archive.Entry) bool {
	if _, known := t.found[e.Name]; known || e.Name == "." {
		return false
	}
	t.found[e.Name] = e
	return true
}

// miss records that something cannot be copied. What is gone is not on the node, and neither is an attribute that has
// no value for now, as the speed of an interface that is down.
func (t *collector) miss(name string, err error) {
	for _, none := range []error{fs.ErrNotExist, syscall.ESRCH, syscall.ENOTDIR, syscall.EINVAL, syscall.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return
		}
	}
	t.missing[name+": "+files.Cause(err).Error()] = true
}

// read reads the regular files, each with its own timeout. One that never answers keeps a goroutine, and no other file
// waits for it.
func (t *collector) read(ctx context.Context, timeout time.Duration) {
	var reading errgroup.Group
	reading.SetLimit(atOnce)
	var mu sync.Mutex
	for _, name := range t.regular {
		reading.Go(func() error {
			text, err := node.Within(ctx, timeout, "it did not respond", func(context.Context) ([]byte, error) {
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
	_ = reading.Wait() // what cannot be read is missing
}

// row returns the line of the device table about a special file, if it can have one.
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
