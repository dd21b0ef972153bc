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

// Open returns the directory that a root names: the root itself where it is not a regular file, else a temporary
// directory into which the archive is unpacked. The caller calls remove at the end; a signal that ends the program
// before removes the directory, too.
func Open(root string) (dir string, remove func() error, err error) {
	info, err := os.Stat(root)
	if err != nil || !info.Mode().IsRegular() {
		return root, func() error { return nil }, nil // who reads the directory reports what is wrong with it
	}
	file, err := os.Open(root)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	made, remove, err := temporary()
	if err != nil {
		return "", nil, err
	}
	if err := Unpack(file, made); err != nil {
		return "", nil, errors.Join(fmt.Errorf("cannot unpack the support bundle %s: %w", root, err), remove())
	}
	return made, remove, nil
}

// temporary makes a directory that no signal leaves behind.
func temporary() (dir string, remove func() error, err error) {
	var making sync.Mutex
	var made string
	making.Lock()
	stop := onSignal(func() {
		making.Lock()
		// Whoever unpacks into it meanwhile can keep it from being empty, but soon finds no directory to write to.
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

// Unpack unpacks an archive into an empty directory. It fails where the archive has anything but directories, regular
// files, and links that stay in the directory, or more than Write puts into one; the directory then has a part of it.
// Modes, owners, and times are not restored: files have mode 0600, and directories 0700.
func Unpack(r io.Reader, dir string) error {
	// Headers count too, so that an archive of nothing but headers ends.
	return unpack(r, dir, 2*MaxTotal)
}

// unpack unpacks an archive of at most so many bytes when it is not compressed.
func unpack(r io.Reader, dir string, limit int64) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // its files are closed one by one
	compressed, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	stream := &io.LimitedReader{R: compressed, N: limit + 1} // one more than allowed shows that there is more
	u := unpacker{root: root, dirs: map[string]bool{".": true}}
	if err = u.unpackAll(tar.NewReader(stream)); err == nil {
		_, err = io.Copy(io.Discard, stream) // up to the checksum
	}
	if stream.N == 0 {
		return fmt.Errorf("it is larger than %d bytes", limit)
	}
	if err != nil {
		return err
	}
	return u.checkLinks()
}

type unpacker struct {
	root  *os.Root
	count bounds
	dirs  map[string]bool // that were made: nothing is written through a link
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
			continue // tar has it of a directory's content
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
		return errors.New("the support bundle has no top-level directory")
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
	return fmt.Errorf("it is not a directory, a regular file, or a link (type %q)", header.Typeflag)
}

// checkLinks refuses links that lead out of the directory. It comes last, since a link can lead through others. Only a
// link that leads nowhere is as harmless as one that leads to something inside.
func (u *unpacker) checkLinks() error {
	for _, name := range u.links {
		// guard: links that lead out
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return fmt.Errorf("%.80q: the link cannot be followed inside the support bundle: %w", name, files.Cause(err))
		}
	}
	return nil
}
