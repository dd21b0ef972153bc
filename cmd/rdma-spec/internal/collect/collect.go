// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect copies a part of a node's file system, so that programs that read it give the same results elsewhere.
//
// What to copy comes as patterns. Links stay links, device nodes and sockets become empty files and rows of the device
// table, programs become empty files, and secrets are masked. It does not know what the files mean.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// atOnce is how many files are read at a time, so that many that block do not add up.
const atOnce = 16

// Copy is a part of a node.
type Copy struct {
	Entries []archive.Entry // in the order of their names
	// Missing names what is on the node and not in the copy, and why, sorted.
	Missing []string
}

// Take copies what the patterns match on the node below a root. They are those of path.Match, below the root and
// without a leading slash. What a pattern does not match is not on the node, which is not an error. A file that takes
// longer than the patience is missing: a sick HCA blocks who reads its ports.
func Take(ctx context.Context, root string, patience time.Duration, patterns []string) (*Copy, error) {
	t := &taker{files: openFiles(root), patience: patience, found: map[string]archive.Entry{},
		missing: map[string]string{}}
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("root %q: %w", root, cmp.Or(oserror.Reason(err), error(syscall.ENOTDIR)))
	}
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		t.match(".", strings.Split(pattern, "/"))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	t.contents(ctx)
	t.deviceTable()
	c := &Copy{}
	for _, e := range t.found {
		c.Entries = append(c.Entries, e)
	}
	slices.SortFunc(c.Entries, func(a, b archive.Entry) int { return strings.Compare(a.Name, b.Name) })
	for name, reason := range t.missing {
		c.Missing = append(c.Missing, name+": "+reason)
	}
	slices.Sort(c.Missing)
	return c, ctx.Err()
}

// taker finds what patterns match. All names in it are without links.
type taker struct {
	files
	patience time.Duration
	found    map[string]archive.Entry
	contains []string // the regular files among them
	table    []string
	missing  map[string]string
}

// match follows the parts of a pattern from a folder on.
func (t *taker) match(folder string, parts []string) {
	if len(parts) == 0 {
		return
	}
	if !strings.ContainsAny(parts[0], `*?[\`) {
		t.step(folder, parts[0], parts[1:])
		return
	}
	names, err := t.list(folder)
	if err != nil {
		t.miss(folder, err)
		return
	}
	for _, name := range names {
		if matches, _ := path.Match(parts[0], name); matches { // the pattern is sound
			t.step(folder, name, parts[1:])
		}
	}
}

// step takes one name of a folder along, follows it if it is a link, and goes on with the rest of the pattern where it
// leads.
func (t *taker) step(folder, name string, rest []string) {
	at, err := t.follow(folder, name)
	if err != nil {
		t.miss(path.Join(folder, name), err)
		return
	}
	info, err := t.lstat(at)
	switch {
	case err != nil:
		t.miss(at, err)
	case info.IsDir() || t.magic(at):
		t.add(archive.Entry{Name: at, Folder: true})
		t.match(at, rest)
	case len(rest) > 0: // a file where the pattern has a folder
	// an attribute that is only written
	case secretFile(at), strings.HasPrefix(at, "sys/") && info.Mode().Perm()&0o444 == 0:
	case program(at), program(path.Join(folder, name)):
		t.add(archive.Entry{Name: at})
	case info.Mode().IsRegular():
		if t.add(archive.Entry{Name: at}) {
			t.contains = append(t.contains, at)
		}
	default: // opening it could wait, or have effects
		if t.add(archive.Entry{Name: at}) && strings.HasPrefix(at, "dev/") {
			t.table = append(t.table, row(at, info)...)
		}
	}
}

// secretFile reports whether a file is never copied, whatever asks for it.
func secretFile(name string) bool {
	environment, _ := path.Match("proc/*/environ", name)
	return environment
}

// program reports whether a file is a program, by where it is. Only its existence counts, and it can be larger than an
// archive's files.
func program(name string) bool {
	return strings.HasPrefix(name, "opt/") || path.Base(path.Dir(name)) == "bin"
}

// add takes an entry along, once.
func (t *taker) add(e archive.Entry) bool {
	if _, known := t.found[e.Name]; known || e.Name == "." {
		return false
	}
	t.found[e.Name] = e
	return true
}

// miss records that something cannot be copied. What is gone is not on the node, and neither is an attribute that has
// no value for now, as the speed of an interface that is down.
func (t *taker) miss(name string, err error) {
	for _, none := range []error{fs.ErrNotExist, syscall.ESRCH, syscall.ENOTDIR, syscall.EINVAL, syscall.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return
		}
	}
	t.missing[name] = oserror.Reason(err).Error()
}

// maxLinks bounds the links on the way to a file, as in Linux.
const maxLinks = 40

// follow takes the links along that a name in a folder leads through, and returns where the last one leads.
func (t *taker) follow(folder, name string) (string, error) {
	at, parts, links := folder, []string{name}, 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		if part == ".." {
			at = above(at)
			continue
		}
		next := path.Join(at, part)
		info, err := t.lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode().Type() != fs.ModeSymlink || t.magic(next) {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		target, err := t.readlink(next)
		if err != nil {
			return "", err
		}
		t.add(archive.Entry{Name: next, Link: inside(next, target)})
		if path.IsAbs(target) {
			at = top(next)
		}
		parts = slices.Concat(strings.FieldsFunc(target, func(r rune) bool { return r == '/' }), parts)
	}
	return at, nil
}

// contents reads the regular files.
func (t *taker) contents(ctx context.Context) {
	var reading errgroup.Group
	reading.SetLimit(atOnce)
	var mu sync.Mutex
	for _, name := range t.contains {
		reading.Go(func() error {
			text, err := t.read(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				delete(t.found, name)
				t.miss(name, err)
				return nil
			}
			t.found[name] = archive.Entry{Name: name, Content: text}
			return nil
		})
	}
	_ = reading.Wait() // what cannot be read is missing
}

// deviceTable describes the device nodes, which an archive cannot have. A copy has none, and its own table is copied.
func (t *taker) deviceTable() {
	if len(t.table) > 0 {
		slices.Sort(t.table)
		t.found[hca.DeviceTable] = archive.Entry{Name: hca.DeviceTable,
			Content: []byte("# path type mode uid gid major minor\n" + strings.Join(t.table, ""))}
	}
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

// read reads a regular file with its own patience. One that never answers keeps a goroutine, and no other file waits
// for it.
func (t *taker) read(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	type answer struct {
		text []byte
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		text, err := t.readFile(name)
		read <- answer{text, err}
	}()
	select {
	case a := <-read:
		return a.text, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("it did not answer within %s", t.patience)
	}
}

// readFile reads a regular file of at most archive.MaxFile bytes: really, whatever size sysfs claims.
func (f files) readFile(name string) ([]byte, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, archive.MaxFile+1))
	if len(text) > archive.MaxFile {
		return nil, fmt.Errorf("it has more than %d bytes", archive.MaxFile)
	}
	return text, err
}
