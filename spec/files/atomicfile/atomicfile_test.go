// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// dirWith creates files in a temporary directory that other users can read.
func dirWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := scratch.With(t, files, 0o600)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// check compares the files in a directory. It follows links, and omits directories and sockets.
func check(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if content, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			got[e.Name()] = string(content)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func stat(t *testing.T, file string) (fs.FileMode, *syscall.Stat_t) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode(), info.Sys().(*syscall.Stat_t)
}

func TestReplaceMakesANewFile(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // the mode does not depend on the administrator's umask
	dir := dirWith(t, nil)
	file := filepath.Join(dir, "spec.json")
	backup, err := Replace(file, []byte("new"))
	if err != nil || backup != "" {
		t.Errorf("Replace = %q, %v", backup, err)
	}
	check(t, dir, map[string]string{"spec.json": "new"})
	if mode, _ := stat(t, file); mode != 0o644 {
		t.Errorf("mode %v, want 0644", mode)
	}
}

// The first backup is the administrator's original. A later file may be the administrator's work, too.
func TestReplaceOverwritesNoBackup(t *testing.T) {
	dir := dirWith(t, map[string]string{"spec.json": "original"})
	file := filepath.Join(dir, "spec.json")
	for _, write := range []struct{ content, backup string }{
		{"second", file + ".rdma-spec.bak"},
		{"third", file + ".rdma-spec.bak.2"},
		{"original", file + ".rdma-spec.bak.3"},
		{"third", file + ".rdma-spec.bak"},
		{"second", file + ".rdma-spec.bak.3"},
	} {
		if backup, err := Replace(file, []byte(write.content)); err != nil || backup != write.backup {
			t.Errorf("Replace by %q = %q, %v; want %q", write.content, backup, err, write.backup)
		}
	}
	check(t, dir, map[string]string{
		"spec.json": "second", "spec.json.rdma-spec.bak": "original", "spec.json.rdma-spec.bak.2": "second",
		"spec.json.rdma-spec.bak.3": "third",
	})
}

func TestReplaceKeepsModeAndOwner(t *testing.T) {
	dir := dirWith(t, map[string]string{"spec.json": "old"})
	file := filepath.Join(dir, "spec.json")
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 { // only root can change a file's owner
		uid, gid = 12345, 54321
	}
	if err := os.Chown(file, uid, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o627); err != nil {
		t.Fatal(err)
	}
	backup, err := Replace(file, []byte("new"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{file, backup} {
		mode, owner := stat(t, f)
		if mode != 0o627 || int(owner.Uid) != uid || int(owner.Gid) != gid {
			t.Errorf("%s: mode %v, owner %d:%d; want 0627, %d:%d", filepath.Base(f), mode, owner.Uid, owner.Gid, uid, gid)
		}
	}
}

// A process that has the file open while it is replaced keeps the complete old file, because a new file gets the name.
// The same applies to the backup: a later edit of the file does not change it.
func TestReplaceIsAtomic(t *testing.T) {
	dir := dirWith(t, map[string]string{"spec.json": "old content"})
	file := filepath.Join(dir, "spec.json")
	reader, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	if _, err := Replace(file, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if old, err := io.ReadAll(reader); err != nil || string(old) != "old content" {
		t.Errorf("who had it open reads %q, %v", old, err)
	}
	scratch.File(t, file, "edited", 0o600)
	check(t, dir, map[string]string{"spec.json": "edited", "spec.json.rdma-spec.bak": "old content"})
}

func TestReplaceLeavesEqualContentAlone(t *testing.T) {
	dir := dirWith(t, map[string]string{"spec.json": "same"})
	file := filepath.Join(dir, "spec.json")
	_, before := stat(t, file)
	backup, err := Replace(file, []byte("same"))
	if err != nil || backup != "" {
		t.Errorf("Replace = %q, %v", backup, err)
	}
	if _, after := stat(t, file); after.Ino != before.Ino {
		t.Error("a file that had the content already was replaced")
	}
	check(t, dir, map[string]string{"spec.json": "same"})
}

func TestReplaceFollowsLinks(t *testing.T) {
	real := dirWith(t, map[string]string{"real.json": "old"})
	target := filepath.Join(real, "real.json")
	dir := dirWith(t, map[string]string{"spec.json": "-> " + target})
	link := filepath.Join(dir, "spec.json")
	backup, err := Replace(link, []byte("new"))
	if err != nil || backup != target+backupSuffix {
		t.Errorf("Replace = %q, %v", backup, err)
	}
	if to, err := os.Readlink(link); err != nil || to != target {
		t.Errorf("the link goes to %q, %v", to, err)
	}
	check(t, real, map[string]string{"real.json": "new", "real.json.rdma-spec.bak": "old"})
	check(t, dir, map[string]string{"spec.json": "new"})
}

// inTime replaces a file that may be a pipe, and fails the test if that takes too long, because reading a pipe blocks.
func inTime(t *testing.T, file string) (backup string, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		backup, err = Replace(file, []byte("new"))
	}()
	await.Receive(t, await.Timeout, "the end of Replace of "+file, done)
	return backup, err
}

func TestReplaceRefuses(t *testing.T) {
	dir := dirWith(t, map[string]string{"file": "old", "dangling": "-> nowhere", "circle": "-> circle"})
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Mkdir(at("directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	scratch.Socket(t, at("socket"))
	for name, want := range map[string]string{
		"dangling":     "the path is a link to a file that does not exist",
		"circle":       "too many levels of symbolic links",
		"directory":    "not a regular file",
		"pipe":         "not a regular file",
		"socket":       "not a regular file",
		"file/below":   "not a directory",
		"missing/file": "no such file or directory",
	} {
		backup, err := inTime(t, at(name))
		if err == nil || !strings.Contains(err.Error(), at(name)) || !strings.Contains(err.Error(), want) || backup != "" {
			t.Errorf("Replace(%s) = %q, %v; want %s", name, backup, err, want)
		}
	}
	if to, err := os.Readlink(at("dangling")); err != nil || to != "nowhere" {
		t.Errorf("the dangling link became %q, %v", to, err)
	}
	if err := os.Remove(at("pipe")); err != nil { // reading it would block
		t.Fatal(err)
	}
	check(t, dir, map[string]string{"file": "old"})
}

// `--to /dev/stdout` must not replace that link with a file, whatever the link's target is.
func TestReplaceLeavesDeviceLinksAlone(t *testing.T) {
	read, written, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	t.Cleanup(func() { _ = written.Close() })
	// /proc/self/fd/N is a link whose text, such as pipe:[…], is not a file's name.
	link := filepath.Join(dirWith(t, map[string]string{"stdout": "-> /proc/self/fd/" + fd(written)}), "stdout")
	if _, err := inTime(t, link); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Replace: %v", err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link became %v, %v", info, err)
	}
}
