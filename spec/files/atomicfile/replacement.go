// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// replacement describes how to replace a file.
type replacement struct {
	file    string
	content []byte
	mode    fs.FileMode // the mode of a new file, or of one of the program's own files
	own     bool
	hold    func(*os.File) error      // called with the new file while only its owner can open the file; can be nil
	ready   func(target string) error // called immediately before the rename; can be nil
}

// replace replaces the file after the new content is on the disk and the function ready has succeeded. After the
// replacement, only the sync of the directory can fail.
func (r replacement) replace() (replaced bool, err error) {
	target, info, err := resolve(r.file)
	if err != nil {
		return false, writeError(r.file, err)
	}
	if r.own {
		info = nil
	}
	dir, _ := backupPlace(r.file, target)
	pending, err := renameio.NewPendingFile(target, renameio.WithTempDir(dir), renameio.WithPermissions(0o600))
	if err != nil {
		return false, writeError(r.file, err)
	}
	defer func() { _ = pending.Cleanup() }() // Cleanup does nothing after a success
	if err := r.prepare(target, pending, info); err != nil {
		return false, writeError(r.file, err)
	}
	if r.ready != nil {
		if err := r.ready(target); err != nil {
			return false, err
		}
	}
	if err := pending.CloseAtomicallyReplace(); err != nil {
		return false, writeError(r.file, err)
	}
	return true, writeError(r.file, syncDir(filepath.Dir(target)))
}

// prepare writes the new content. The new file gets the mode and owner from info, or the replacement's mode if info is
// nil. prepare sets the mode last, so other users cannot open the file until it is complete.
func (r replacement) prepare(target string, pending *renameio.PendingFile, info fs.FileInfo) error {
	mode := r.mode
	if info != nil {
		mode = info.Mode().Perm()
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			if err := pending.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return err
			}
		}
		if err := copyAttributes(target, pending); err != nil {
			return err
		}
	}
	if _, err := pending.Write(r.content); err != nil {
		return err
	}
	if r.hold != nil {
		if err := r.hold(pending.File); err != nil {
			return err
		}
	}
	if err := pending.Chmod(mode); err != nil {
		return err
	}
	return pending.Sync()
}

// signatures are the names of the extended attributes that the kernel compares with a file's content.
var signatures = []string{"security.ima", "security.evm"}

// copyAttributes copies extended attributes of the old file, such as the SELinux label and access control lists, to the
// new file. It does not copy signatures.
func copyAttributes(target string, pending *renameio.PendingFile) error {
	names := make([]byte, 64<<10) // the kernel's limit, also for a value
	n, err := unix.Listxattr(target, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	already := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if slices.Contains(signatures, name) {
			continue
		}
		size, err := unix.Getxattr(target, name, value)
		if err != nil {
			return err
		}
		given, err := unix.Fgetxattr(int(pending.Fd()), name, already)
		if err == nil && bytes.Equal(already[:given], value[:size]) {
			continue // SELinux has already set this label, and does not allow this process to set labels
		}
		if err := unix.Fsetxattr(int(pending.Fd()), name, value[:size], 0); err != nil {
			return err
		}
	}
	return nil
}

// keepBackup gives the file at target, which has the old content, a second name, and returns the second name. The
// second name is backup. If an earlier backup has that name, the second name is backup.2, backup.3, and so on. If an
// earlier backup has the same content, keepBackup returns the earlier backup's name instead. If the file is not
// replaced, call undo to remove the second name.
func keepBackup(target, backup string, old []byte) (path string, undo func(), err error) {
	path = backup
	undo = func() {}
	for n := 2; ; n++ {
		err := os.Link(target, path)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", undo, err
		}
		if earlier, err := os.ReadFile(path); err == nil && bytes.Equal(earlier, old) {
			return path, undo, nil
		}
		path = fmt.Sprintf("%s.%d", backup, n)
	}
	return path, func() { _ = os.Remove(path) }, syncDir(filepath.Dir(path))
}

// syncDir syncs a directory, so that the names of its files survive a power failure.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened only for reading
	return dir.Sync()
}
