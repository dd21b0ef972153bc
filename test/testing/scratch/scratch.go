// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch creates directories for tests, and files and sockets in them. It does not know what they are for.
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

// Dir creates a directory that is removed when the test ends, and the directories below it with the given names. The
// directory is in memory if the machine has such a file system, because on a busy disk a hundred small files, or a
// single fsync, take longer than a test. Its name is short, because the path of a socket has at most 107 bytes.
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

// inMemory returns a directory in memory from which programs can be run; "" if there is none.
func inMemory() string {
	const memory = "/dev/shm"
	var mount unix.Statfs_t
	if err := unix.Statfs(memory, &mount); err != nil || mount.Type != unix.TMPFS_MAGIC || mount.Flags&unix.ST_NOEXEC != 0 ||
		unix.Access(memory, unix.W_OK) != nil {
		return ""
	}
	return memory
}

// File writes a file, and creates its parent directories.
func File(t testing.TB, file, content string, mode fs.FileMode) {
	t.Helper()
	makeAbove(t, file)
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// Files creates files in a directory. The map contains the content of each file by its relative path. A content "->
// TARGET" creates a symbolic link.
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

// With creates a directory like Dir, with files like Files, and returns its path.
func With(t testing.TB, contents map[string]string, mode fs.FileMode) string {
	t.Helper()
	dir := Dir(t)
	Files(t, dir, contents, mode)
	return dir
}

// Tree returns what a directory contains, by relative path. For a directory, the path ends with a slash, and the value
// is "". For a link to a directory, the value is "-> TARGET". For any other file, it is the content.
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

// Read returns the content of a file.
func Read(t testing.TB, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Socket creates a socket that listens until the test ends, and its parent directories. Clients get no answer unless
// the test accepts their connections.
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
