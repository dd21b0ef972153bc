// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package archive writes a part of a node's file system to a tar.gz file, and unpacks such a file on another machine.
//
// An archive contains directories, regular files, and links within the archive. It can come from an untrusted source,
// so the reader refuses everything else: paths and links that lead out of it, devices, and more data than a node's
// archive can contain. The package does not know what the files mean.
package archive

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The maximum content of an archive. A node with 16 HCAs and 5,000 processes stays far below these limits.
const (
	MaxFile    = 32 << 20  // bytes of a file; large, because a privileged container lists each device of the node
	MaxTotal   = 256 << 20 // bytes of the uncompressed archive
	MaxEntries = 200_000
	maxPath    = 1024 // bytes of a path, or of a link's target
)

// Entry is a directory, a link, or a regular file.
type Entry struct {
	Name    string // relative to the root, with slashes
	Dir     bool
	Link    string // the link's target, relative to its directory; "" for other entries
	Content []byte // of a regular file
}

// Write writes an archive. The same entries produce the same bytes in any order. Write adds the entries' missing parent
// directories.
func Write(w io.Writer, entries []Entry) error {
	all := withDirs(entries)
	var count bounds
	for i, e := range all { // refuse what Unpack would refuse
		if err := count.add(e.Name, e.Link, int64(len(e.Content))); err != nil {
			return err
		}
		if i > 0 && all[i-1].Name == e.Name {
			return fmt.Errorf("%s occurs twice", e.Name)
		}
	}
	compressed := gzip.NewWriter(w)
	packed := tar.NewWriter(compressed)
	for _, e := range all {
		// The time is set because readers interpret a zero time differently.
		header := &tar.Header{Name: e.Name, ModTime: time.Unix(0, 0), Format: tar.FormatPAX, Mode: 0o600,
			Typeflag: tar.TypeReg, Size: int64(len(e.Content))}
		switch {
		case e.Dir:
			header.Typeflag = tar.TypeDir
			header.Mode = 0o700
			header.Name = e.Name + "/"
		case e.Link != "":
			header.Typeflag = tar.TypeSymlink
			header.Mode = 0o777
			header.Linkname = e.Link
		}
		if err := packed.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		if _, err := packed.Write(e.Content); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

// withDirs returns the entries sorted by name, with each directory before its entries.
func withDirs(entries []Entry) []Entry {
	all := slices.Clone(entries)
	dirs := map[string]bool{".": true, "/": true}
	for _, e := range entries {
		dirs[e.Name] = e.Dir || dirs[e.Name]
	}
	for _, e := range entries {
		for dir := path.Dir(e.Name); !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
			all = append(all, Entry{Name: dir, Dir: true})
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// bounds counts the entries and bytes of an archive.
type bounds struct {
	entries int
	total   int64
}

// add counts an entry, and rejects an entry that exceeds a limit.
func (b *bounds) add(name, link string, size int64) error {
	const header = 512 // bytes of an entry without its content
	b.entries++
	b.total += size + header
	switch {
	case !isLocal(name):
		return fmt.Errorf("%.80q is not a path inside the support bundle", name)
	case len(name) > maxPath || len(link) > maxPath:
		return fmt.Errorf("the path or the link target of %.80q is longer than %d bytes", name, maxPath)
	case size > MaxFile:
		return fmt.Errorf("%.80q is larger than %d bytes", name, MaxFile)
	case b.entries > MaxEntries:
		return fmt.Errorf("the support bundle has more than %d entries", MaxEntries)
	case b.total > MaxTotal:
		return fmt.Errorf("the support bundle is larger than %d bytes", MaxTotal)
	}
	return nil
}

// isLocal reports whether a name is a clean path relative to the root, without "..", empty parts, and zero bytes.
func isLocal(name string) bool {
	return filepath.IsLocal(name) && path.Clean(name) == name && !strings.Contains(name, "\x00")
}
