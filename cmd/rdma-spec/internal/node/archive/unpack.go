// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Open returns the directory for a root. If the root is a regular file, Open unpacks the archive into a temporary
// directory. Otherwise, it returns the root itself. The caller must call remove. If a signal ends the program first,
// the temporary directory is removed, too.
func Open(root string) (dir string, remove func() error, err error) {
	info, err := os.Stat(root)
	if err != nil || !info.Mode().IsRegular() {
		return root, func() error { return nil }, nil // the code that reads the directory reports errors
	}
	file, err := os.Open(root)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = file.Close() }() // opened only for reading
	made, remove, err := temporary()
	if err != nil {
		return "", nil, err
	}
	if err := Unpack(file, made); err != nil {
		return "", nil, errors.Join(fmt.Errorf("cannot unpack the support bundle %s: %w", root, err), remove())
	}
	return made, remove, nil
}

// temporary creates a directory that is removed even if a signal ends the program.
func temporary() (dir string, remove func() error, err error) {
	var making sync.Mutex
	var made string
	making.Lock()
	stop := onSignal(func() {
		making.Lock()
		// A concurrent Unpack can add files, but it soon fails because its directory is missing.
		for range 100 {
			if os.RemoveAll(made) == nil {
				return
			}
		}
	})
	made, err = os.MkdirTemp("", "rdma-spec-")
	making.Unlock()
	if err != nil {
		stop()
		return "", nil, err
	}
	return made, func() error {
		err := os.RemoveAll(made)
		stop()
		return err
	}, nil
}

// Unpack unpacks an archive into an empty directory. An archive can contain only directories, regular files, and links
// within the directory, up to the limits of Write. For any other archive, Unpack fails, and the directory contains part
// of the archive. Modes, owners, and times are not restored. Files have mode 0600, and directories have mode 0700.
func Unpack(r io.Reader, dir string) error {
	// The limit includes headers, so that it also stops an archive that contains only headers.
	return unpack(r, dir, 2*MaxTotal)
}

// unpack unpacks an archive whose uncompressed size is at most limit bytes.
func unpack(r io.Reader, dir string, limit int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // each file was closed separately
	compressed, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	stream := &io.LimitedReader{R: compressed, N: limit + 1} // the extra byte shows that the archive exceeds the limit
	u := unpacker{root: root, dirs: map[string]bool{".": true}}
	if err = u.unpackAll(tar.NewReader(stream)); err == nil {
		_, err = io.Copy(io.Discard, stream) // up to the checksum
	}
	if stream.N == 0 {
		return fmt.Errorf("the support bundle is larger than %d bytes", limit)
	}
	if err != nil {
		return err
	}
	return u.checkLinks()
}

type unpacker struct {
	root  *os.Root
	count bounds
	dirs  map[string]bool // created directories; nothing is written through a link
	links []string
}

func (u *unpacker) unpackAll(packed *tar.Reader) error {
	for {
		header, err := packed.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimSuffix(header.Name, "/"), "./")
		if header.Typeflag == tar.TypeDir && (name == "." || name == "") {
			continue // tar writes this entry for a directory's content
		}
		if err := u.count.add(name, header.Linkname, header.Size); err != nil {
			return err
		}
		if err := u.unpackEntry(name, header, packed); err != nil {
			return fmt.Errorf("%.80q: %w", name, files.Cause(err))
		}
	}
}

func (u *unpacker) unpackEntry(name string, header *tar.Header, content io.Reader) error {
	// guard: directories that are links
	if !u.dirs[path.Dir(name)] {
		return errors.New("the parent directory is missing from the support bundle, or is a link")
	}
	switch header.Typeflag {
	case tar.TypeDir:
		u.dirs[name] = true
		return u.root.Mkdir(name, 0o700)
	case tar.TypeSymlink:
		u.links = append(u.links, name)
		return u.root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	}
	return fmt.Errorf("the entry (type %q) is not a directory, a regular file, or a link", header.Typeflag)
}

// checkLinks rejects links that lead out of the directory. Because a link can lead through other links, checkLinks runs
// after all entries are unpacked. A dangling link is harmless.
func (u *unpacker) checkLinks() error {
	for _, name := range u.links {
		// guard: links that lead out
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return fmt.Errorf("%.80q: the link cannot be followed inside the support bundle: %w", name, files.Cause(err))
		}
	}
	return nil
}
