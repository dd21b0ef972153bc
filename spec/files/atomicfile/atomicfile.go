// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files: an administrator's, and a program's own. At every moment, also in a power cut, the
// file is either the old one or the new one, whole.
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

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// backupSuffix is what the name of the first backup ends with. Later ones have a number behind it: .rdma-spec.bak.2.
const backupSuffix = ".rdma-spec.bak"

// Replace writes a file's new content. It follows a link to the file that the link names. A new file gets mode 0644. An
// existing file keeps its mode and owner, and its old content stays as a backup beside it: FILE.rdma-spec.bak. No
// backup is ever overwritten. A file that already has the content is left alone.
//
// A daemon may read every file of a directory, whatever the name: CRI-O does, below crio.conf.d, and containerd does
// not start where it finds a program in /opt/nri/plugins whose name has no index. So nothing but the file itself is
// ever in such a directory: the backup and the unfinished new file are in the directory above, which has to be on the
// same file system.
//
// Replace returns the path of the backup that has the old content, "" where there was none or nothing changed.
// After an error all files are as they were, unless only the last sync of the directory failed.
func Replace(file string, content []byte) (backup string, err error) {
	target, info, err := resolve(file)
	var old []byte
	if err == nil && info != nil {
		old, err = os.ReadFile(target)
	}
	if err != nil || info != nil && bytes.Equal(old, content) {
		return "", named(file, err)
	}
	dir, name := besides(file, target)
	undo := func() {}
	r := replacement{file: file, content: content, mode: 0o644, ready: func(string) (err error) {
		if info != nil {
			backup, undo, err = keep(target, filepath.Join(dir, name+backupSuffix), old)
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

// Write writes a file's new content as Replace does, but keeps no backup: it is for a caller that has kept the old
// content. A new file gets the mode. The parent directory has to exist.
func Write(file string, content []byte, mode fs.FileMode) error {
	r := replacement{file: file, content: content, mode: mode}
	_, err := r.replace()
	return err
}

// Own writes the new content of a file that is the program's own: it gets the mode, and its owner is the program's
// user, whoever has changed that. Before anybody else can open it, hold gets it, such as to lock it; nil for nothing.
// The file is closed behind hold.
func Own(file string, content []byte, mode fs.FileMode, hold func(*os.File) error) error {
	r := replacement{file: file, content: content, mode: mode, own: true, hold: hold}
	_, err := r.replace()
	return err
}

// ErrChanged is the error where a file no longer has the content that a change starts from.
var ErrChanged = errors.New("it has changed in the meantime: rerun the command")

// Change writes a file's new content as Write does, or removes the file where content is nil, but only where the file
// still has the old content, or where there is still none and old is nil. It looks at the last moment, when only the
// name has to change. A link is removed, and not the file that it names.
func Change(file string, old, content []byte, mode fs.FileMode) error {
	unchanged := func(target string) error {
		now, err := files.Content(target)
		if err == nil && !files.Same(now, old) {
			err = ErrChanged
		}
		return named(file, err)
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
	return named(file, err)
}

// named is the error where a file cannot be written.
func named(file string, err error) error {
	if err != nil {
		err = fmt.Errorf("cannot write %s: %w", file, cause(err))
	}
	return err
}

// cause says why a file cannot be written.
func cause(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) {
		return errors.New("it or its directory is a mount point: change the mounted file instead")
	}
	return files.Cause(err)
}

// replacement is what a file is replaced by.
type replacement struct {
	file    string
	content []byte
	mode    fs.FileMode // of a file that does not exist, or that is the program's own
	own     bool
	hold    func(*os.File) error      // is called with the new file, which only its owner can open; nil for nothing
	ready   func(target string) error // is called when only the name has to change; nil for nothing
}

// replace replaces the file once the new content is on the disk and the target is ready. Only the last sync of its
// directory can fail after it is replaced.
func (r replacement) replace() (replaced bool, err error) {
	target, info, err := resolve(r.file)
	if err != nil {
		return false, named(r.file, err)
	}
	if r.own {
		info = nil
	}
	dir, _ := besides(r.file, target)
	pending, err := renameio.NewPendingFile(target, renameio.WithTempDir(dir), renameio.WithPermissions(0o600))
	if err != nil {
		return false, named(r.file, err)
	}
	defer func() { _ = pending.Cleanup() }() // after a success there is nothing left to clean
	if err := r.prepare(target, pending, info); err != nil {
		return false, named(r.file, err)
	}
	if r.ready != nil {
		if err := r.ready(target); err != nil {
			return false, err
		}
	}
	if err := pending.CloseAtomicallyReplace(); err != nil {
		return false, named(r.file, err)
	}
	return true, named(r.file, syncDir(filepath.Dir(target)))
}

// Backup gives a file's content a second name beside it, as Replace does, and returns that.
func Backup(file string) (backup string, err error) {
	target, _, err := resolve(file)
	if err != nil {
		return "", named(file, err)
	}
	old, err := os.ReadFile(target)
	if err == nil {
		dir, name := besides(file, target)
		backup, _, err = keep(target, filepath.Join(dir, name+backupSuffix), old)
	}
	if err != nil {
		return "", fmt.Errorf("cannot back up %s: %w", file, cause(err))
	}
	return backup, nil
}

// randomLeast is how many digits the name of an unfinished file ends with, or more: it is a random number of 63 bits.
// Dates have fewer, with which people and tools name copies of their own.
const randomLeast = 15

// Sweep removes the unfinished new files of a file that writers left who were killed. The caller makes sure that
// nobody writes the file now.
func Sweep(file string) {
	target, _, err := resolve(file)
	if err != nil {
		return // nobody can have written there
	}
	dir, _ := besides(file, target)
	unfinished := "." + filepath.Base(target)
	entries, _ := os.ReadDir(dir) // what cannot be listed stays
	for _, entry := range entries {
		number, isOne := strings.CutPrefix(entry.Name(), unfinished)
		if isOne && len(number) >= randomLeast && strings.Trim(number, "0123456789") == "" {
			_ = os.Remove(filepath.Join(dir, entry.Name())) // the next one tries again
		}
	}
}

// InMemory returns a file that is in no directory, for a program that reads it by its name while the file is open: so
// nothing is left of it, however this process ends.
func InMemory(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("rdma-spec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	if _, err := file.Write(content); err != nil {
		_ = file.Close() // the error says more
		return nil, err
	}
	return file, nil
}

// resolve finds the file that is meant: its absolute path without links, and what it is, nil where it does not exist.
func resolve(file string) (target string, info fs.FileInfo, err error) {
	info, err = os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(file); err == nil { // also /dev/stdout, where it is a pipe
			return "", nil, errors.New("it is a link to a file that does not exist")
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
	target, err = filepath.Abs(target) // only without links: it takes link/.. for nothing
	return target, info, err
}

// besides returns the directory where files may be that belong to target, which is target's own unless a daemon reads
// that whole, and the name that stands for target there: "/etc/crio" and "crio.conf.d-90-rdma.conf" for
// /etc/crio/crio.conf.d/90-rdma.conf. The daemon may know target's directory by a link, which file has then.
func besides(file, target string) (dir, name string) {
	dir = filepath.Dir(target)
	name = filepath.Base(target)
	known, _ := filepath.Abs(filepath.Dir(file)) // without a working directory there is no target either
	for linked := isReadWhole(known); linked || isReadWhole(dir); linked = false {
		name = filepath.Base(dir) + "-" + name
		dir = filepath.Dir(dir)
	}
	return dir, name
}

// isReadWhole reports whether a daemon may read every file of a directory: it is a drop-in directory, or has NRI's
// plugins.
func isReadWhole(dir string) bool {
	return strings.HasSuffix(dir, ".d") || strings.HasSuffix(dir, "/opt/nri/plugins")
}

// prepare writes the new content, with the mode and owner of the file that info describes, or else with the mode of the
// replacement. The mode comes last: until then, nobody else can open the file.
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

// signatures are attributes of a file's content, which the kernel compares with it.
var signatures = []string{"security.ima", "security.evm"}

// copyAttributes copies to the new file the extended attributes of the old one, such as SELinux' label and access
// control lists, but no signatures.
func copyAttributes(target string, pending *renameio.PendingFile) error {
	names := make([]byte, 64<<10) // the kernel's own limit, as for a value
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
			continue // SELinux has given the label, which not everybody may set
		}
		if err := unix.Fsetxattr(int(pending.Fd()), name, value[:size], 0); err != nil {
			return err
		}
	}
	return nil
}

// keep returns the file at target, which has the old content, a second name, so that it is still there when another
// file takes its place: backup, or, where an earlier backup has that name, backup.2 and so on. An earlier backup with
// the same content will do. Where the file is not replaced after all, undo takes the second name away.
func keep(target, backup string, old []byte) (path string, undo func(), err error) {
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

// syncDir makes the names in a directory outlast a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	return dir.Sync()
}
