// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files of administrators, and the program's own files. A reader of a file always sees
// either the complete old content or the complete new content, even after a power failure. The package does not
// interpret the content of files.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// backupSuffix is the suffix of the first backup's name. The suffixes of later backups also contain a number, such as
// .rdma-spec.bak.2.
const backupSuffix = ".rdma-spec.bak"

// Replace writes a file's new content. If the path is a symbolic link, Replace writes the link's target. A new file
// gets mode 0644. An existing file keeps its mode and owner, and Replace keeps the old content in a backup in the same
// directory, FILE.rdma-spec.bak. Replace never overwrites a backup. If the file already has the content, Replace does
// nothing.
//
// Some daemons read every file in a directory, regardless of the file's name. CRI-O reads all files in crio.conf.d, and
// containerd does not start if /opt/nri/plugins contains a program whose name lacks an index. Replace therefore writes
// only the file itself to such a directory. Replace writes the backup and the unfinished new file to the parent
// directory, which must be on the same file system.
//
// Replace returns the path of the backup, or "" if the file is new or did not change. If Replace returns an error, all
// files are unchanged, unless only the last sync of the directory failed.
func Replace(file string, content []byte) (backup string, err error) {
	target, info, err := resolve(file)
	var old []byte
	if err == nil && info != nil {
		old, err = os.ReadFile(target)
	}
	if err != nil || info != nil && bytes.Equal(old, content) {
		return "", writeError(file, err)
	}
	dir, name := backupPlace(file, target)
	undo := func() {}
	r := replacement{file: file, content: content, mode: 0o644, ready: func(string) (err error) {
		if info != nil {
			backup, undo, err = keepBackup(target, filepath.Join(dir, name+backupSuffix), old)
		}
		if err != nil {
			err = fmt.Errorf("cannot back up %s to %s: %w", file, dir, cause(err))
		}
		return err
	}}
	replaced, err := r.replace()
	if err != nil && !replaced {
		undo()
		backup = ""
	}
	return backup, err
}

// Write writes a file's new content as Replace does, but without a backup, for a caller that keeps the old content
// itself. A new file gets the mode. The parent directory must exist.
func Write(file string, content []byte, mode fs.FileMode) error {
	r := replacement{file: file, content: content, mode: mode}
	_, err := r.replace()
	return err
}

// Own writes the new content of one of the program's own files. Own always sets the mode, and makes the program's user
// the owner. If hold is not nil, Own calls hold with the new file before another process can open the file. For
// example, hold can lock the file. Afterwards, Own closes the file.
func Own(file string, content []byte, mode fs.FileMode, hold func(*os.File) error) error {
	r := replacement{file: file, content: content, mode: mode, own: true, hold: hold}
	_, err := r.replace()
	return err
}

// ErrChanged means that a file no longer has the content on which a change is based.
var ErrChanged = errors.New("the file has changed in the meantime: rerun the command")

// Change writes a file's new content as Write does, or removes the file if content is nil. If the file no longer has
// the old content, Change returns ErrChanged. If old is nil, the file must not exist. Change checks the old content at
// the last moment, immediately before the rename. If the path is a symbolic link, Change removes the link, not its
// target.
func Change(file string, old, content []byte, mode fs.FileMode) error {
	unchanged := func(target string) error {
		now, err := files.Content(target)
		if err == nil && !files.Same(now, old) {
			err = ErrChanged
		}
		return writeError(file, err)
	}
	if content != nil {
		r := replacement{file: file, content: content, mode: mode, ready: unchanged}
		_, err := r.replace()
		return err
	}
	if err := unchanged(file); err != nil || old == nil {
		return err
	}
	err := os.Remove(file)
	if err == nil {
		err = syncDir(filepath.Dir(file))
	}
	return writeError(file, err)
}

// writeError adds the file's name to the error of a failed write.
func writeError(file string, err error) error {
	if err != nil {
		err = fmt.Errorf("cannot write %s: %w", file, cause(err))
	}
	return err
}

// cause returns the reason why a file cannot be written, for use in an error message.
func cause(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) {
		return errors.New("the file or its directory is a mount point: change the file at the source of the mount " +
			"instead")
	}
	return files.Cause(err)
}

// Backup keeps a file's content in a backup as Replace does, and returns the backup's path.
func Backup(file string) (backup string, err error) {
	target, _, err := resolve(file)
	if err != nil {
		return "", writeError(file, err)
	}
	old, err := os.ReadFile(target)
	if err == nil {
		dir, name := backupPlace(file, target)
		backup, _, err = keepBackup(target, filepath.Join(dir, name+backupSuffix), old)
	}
	if err != nil {
		return "", fmt.Errorf("cannot back up %s: %w", file, cause(err))
	}
	return backup, nil
}

// randomLeast is the minimum number of digits at the end of an unfinished file's name. The digits are a random number
// of 63 bits. The dates in the names of copies by other tools have fewer digits.
const randomLeast = 15

// Sweep removes unfinished new versions of a file, which killed writers left behind. The caller must ensure that no
// process is writing the file.
func Sweep(file string) {
	target, _, err := resolve(file)
	if err != nil {
		return // a writer cannot have resolved the path either
	}
	dir, _ := backupPlace(file, target)
	unfinished := "." + filepath.Base(target)
	entries, _ := os.ReadDir(dir) // if the directory cannot be listed, the files stay
	for _, entry := range entries {
		number, isOne := strings.CutPrefix(entry.Name(), unfinished)
		if isOne && len(number) >= randomLeast && strings.Trim(number, "0123456789") == "" {
			_ = os.Remove(filepath.Join(dir, entry.Name())) // the next Sweep retries
		}
	}
}

// InMemory returns a file in memory. While the file is open, another program can read it by its name. No file is left
// behind when this process ends, even if the process is killed.
func InMemory(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("rdma-spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	if _, err := file.Write(content); err != nil {
		_ = file.Close() // the error from Write is more useful
		return nil, err
	}
	return file, nil
}

// resolve returns the absolute path of a file without links, and the file's FileInfo. If the file does not exist, the
// FileInfo is nil.
func resolve(file string) (target string, info fs.FileInfo, err error) {
	info, err = os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(file); err == nil { // also /dev/stdout if standard output is a pipe
			return "", nil, errors.New("the path is a link to a file that does not exist")
		}
		dir, name := filepath.Split(file)
		dir, err = filepath.EvalSymlinks(dir)
		target = filepath.Join(dir, name)
	case err == nil && !info.Mode().IsRegular():
		return "", nil, errors.New("not a regular file")
	case err == nil:
		target, err = filepath.EvalSymlinks(file)
	}
	if err != nil {
		return "", nil, err
	}
	target, err = filepath.Abs(target) // after EvalSymlinks, because Abs removes "link/.." without resolving the link
	return target, info, err
}

// backupPlace returns the directory for target's backup and unfinished file, and the prefix of both names. If a daemon
// reads all files in target's directory, backupPlace returns the parent directory. For example, for
// /etc/crio/crio.conf.d/90-rdma.conf, backupPlace returns "/etc/crio" and "crio.conf.d-90-rdma.conf". If the daemon
// uses a link to target's directory, file contains that link.
func backupPlace(file, target string) (dir, name string) {
	dir = filepath.Dir(target)
	name = filepath.Base(target)
	known, _ := filepath.Abs(filepath.Dir(file)) // Abs can fail only if resolve has also failed
	for linked := isReadWhole(known); linked || isReadWhole(dir); linked = false {
		name = filepath.Base(dir) + "-" + name
		dir = filepath.Dir(dir)
	}
	return dir, name
}

// isReadWhole reports whether a daemon might read every file in a directory, because the directory is a drop-in
// directory or NRI's plugin directory.
func isReadWhole(dir string) bool {
	return strings.HasSuffix(dir, ".d") || strings.HasSuffix(dir, "/opt/nri/plugins")
}
