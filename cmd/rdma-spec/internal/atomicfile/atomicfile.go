// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces an administrator's file so that at every moment, also in a power cut, there is either the old one
// or the new one, whole, and so that the old one can be had back.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
)

// BackupSuffix is what the backup's name ends with.
const BackupSuffix = ".rdma-spec.bak"

// Replace writes a file's new content. A link is followed to the file it names. An existing file keeps its mode and owner and is kept
// beside the new one as FILE.rdma-spec.bak; a new one gets mode 0644. A file that has the content already is left alone.
// It gives the backup's name, "" where none was needed. On an error the file is as it was.
func Replace(file string, content []byte) (backup string, err error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("cannot replace %s: %w", file, oserror.Reason(err))
	}
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(file); err == nil { // also /dev/stdout, where it is a pipe
			return fail(errors.New("it is a link to a file that is not there"))
		}
		return "", write(file, content, nil)
	}
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(errors.New("it is no regular file"))
	}
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		return fail(err)
	}
	old, err := os.ReadFile(target)
	if err != nil {
		return fail(err)
	}
	if bytes.Equal(old, content) {
		return "", nil
	}
	backup = target + BackupSuffix
	if err := write(backup, old, info); err != nil {
		return "", err
	}
	return backup, write(target, content, info)
}

// write puts content in place of a file, with the mode and owner of the one that info describes.
func write(file string, content []byte, info fs.FileInfo) error {
	fail := func(err error) error { return fmt.Errorf("cannot write %s: %w", file, oserror.Reason(err)) }
	mode := fs.FileMode(0o644)
	if info != nil {
		mode = info.Mode().Perm()
	}
	pending, err := renameio.NewPendingFile(file, renameio.WithTempDir(filepath.Dir(file)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return fail(err)
	}
	defer func() { _ = pending.Cleanup() }() // after a success there is nothing left to clean
	if info != nil {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			if err := pending.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return fail(err)
			}
		}
	}
	if _, err := pending.Write(content); err != nil {
		return fail(err)
	}
	if err := pending.CloseAtomicallyReplace(); err != nil { // syncs the file
		return fail(err)
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return fail(err)
	}
	defer func() { _ = folder.Close() }() // opened for reading
	if err := folder.Sync(); err != nil {
		return fail(err)
	}
	return nil
}
