// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch makes directories for tests, and files and sockets below them. It knows nothing of what is in them.
package scratch

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Dir makes a directory that is removed at the end of the test, and others below it. It is in memory where the
// machine has that: on a busy disk, a hundred small files take longer than a test, and so does each fsync. Its name is
// short, since the path of a socket has at most 107 bytes.
func Dir(t testing.TB, below ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(inMemory(), "rdma")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range below {
		makeAbove(t, filepath.Join(dir, name, "file"))
	}
	return dir
}

// inMemory returns a directory in memory where files can be programs; "" where there is none.
func inMemory() string {
	const memory = "/dev/shm"
	var mount unix.Statfs_t
	if err := unix.Statfs(memory, &mount); err != nil || mount.Type != unix.TMPFS_MAGIC || mount.Flags&unix.ST_NOEXEC != 0 ||
		unix.Access(memory, unix.W_OK) != nil {
		return ""
	}
	return memory
}

// File writes a file, and makes the directories above it.
func File(t testing.TB, file, content string, mode fs.FileMode) {
	t.Helper()
	makeAbove(t, file)
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// Files makes files below a directory, with the contents by their names. A content "-> target" is a link.
func Files(t testing.TB, dir string, contents map[string]string, mode fs.FileMode) {
	t.Helper()
	for name, content := range contents {
		path := filepath.Join(dir, name)
		target, isLink := strings.CutPrefix(content, "-> ")
		if !isLink {
			File(t, path, content, mode)
			continue
		}
		makeAbove(t, path)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
}

// With makes a directory with files, as Directory and Files do.
func With(t testing.TB, contents map[string]string, mode fs.FileMode) string {
	t.Helper()
	dir := Dir(t)
	Files(t, dir, contents, mode)
	return dir
}

// Tree returns what is below a directory: the contents of files by their names, of directories the names, with a slash
// behind them, and of links to directories where they lead, after "-> ".
func Tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if entry.IsDir() {
			all[name+"/"] = ""
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, unix.EISDIR) { // a link to a directory
			to, err := os.Readlink(path)
			all[name] = "-> " + to
			return err
		}
		all[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Read returns what is in a file.
func Read(t testing.TB, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Socket makes a socket that listens until the end of the test, and the directories above it. Who connects gets no
// answer unless the test gives one.
func Socket(t testing.TB, socket string) net.Listener {
	t.Helper()
	makeAbove(t, socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // the test may have closed it
	return listener
}

func makeAbove(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
}
