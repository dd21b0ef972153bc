// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Limits and users are properties of a process. If one of these is set, this program runs as a child process that calls
// Replace in its working directory and prints the result.
const (
	// fullDisk lets no file grow above 4 KiB, so a write succeeds only in part, as on a full disk.
	fullDisk = "full disk"
	// nobody is a user who owns no files.
	nobody = "nobody"
)

const childVariable = "ATOMICFILE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case fullDisk:
		signal.Ignore(syscall.SIGXFSZ)
		orExit(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: 4096}))
	case nobody:
		if os.Getuid() == 0 {
			orExit(syscall.Setgroups(nil))
			orExit(syscall.Setgid(65534))
			orExit(syscall.Setuid(65534))
		}
	}
	size, err := strconv.Atoi(os.Args[1])
	orExit(err)
	_, err = Replace("spec.json", []byte(strings.Repeat("n", size)))
	fmt.Print(err)
}

func orExit(err error) {
	if err != nil {
		fmt.Print("the test is broken: ", err)
		os.Exit(1)
	}
}

// replaceAs replaces spec.json in a directory with this many bytes in a child process, and returns the error's text.
func replaceAs(t *testing.T, child, dir string, size int) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", strconv.Itoa(size))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), childVariable+"="+child)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A file that is itself a mount point, as in a container, cannot be replaced, and the error says why.
func TestReplaceOfAMountedFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mount needs root")
	}
	files := map[string]string{"spec.json": "old", "other": "mounted"}
	dir := dirWith(t, files)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount --bind other spec.json; exec "$0" 3`, self)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), childVariable+"=mounted")
	out, err := cmd.CombinedOutput()
	want := "cannot back up spec.json to " + dir + ": the file or its directory is a mount point: change the " +
		"file at the source of the mount instead"
	if err != nil || string(out) != want {
		t.Errorf("Replace: %v, %s; want %s", err, out, want)
	}
	check(t, dir, files)
}

func TestReplaceWhereNothingCanBeWritten(t *testing.T) {
	for _, test := range []struct {
		child, want string
		mode        fs.FileMode // of the directory
		size        int
	}{
		{fullDisk, "cannot write spec.json: file too large", 0o755, 10000},
		{nobody, "cannot write spec.json: permission denied", 0o555, 3},
	} {
		for _, files := range []map[string]string{{"spec.json": "old"}, {}} {
			dir := dirWith(t, files)
			for file := range files {
				if err := os.Chmod(dir+"/"+file, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(dir, test.mode); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(dir, 0o755) }) // so that it can be removed
			if got := replaceAs(t, test.child, dir, test.size); got != test.want {
				t.Errorf("%s, %d files: %s; want %s", test.child, len(files), got, test.want)
			}
			check(t, dir, files)
		}
	}
}

// If a drop-in cannot be written, the temporary file in the directory above it is removed.
func TestReplaceInAReadOnlyDropInDir(t *testing.T) {
	above, dir := madeDir(t, "crio/crio.conf.d")
	file := dir + "/spec.json"
	scratch.File(t, file, "old", 0o666)
	for path, mode := range map[string]fs.FileMode{above: 0o777, dir: 0o555, file: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 {
		if err := os.Chown(file, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o755) }) // so that it can be removed
	if got, want := replaceAs(t, nobody, dir, 3), "cannot write spec.json: permission denied"; got != want {
		t.Errorf("Replace: %s; want %s", got, want)
	}
	check(t, dir, map[string]string{"spec.json": "old"})
	check(t, above, map[string]string{})
}

// Replacing another user's file would change its owner. So either the owner is kept, or nothing is changed.
func TestReplaceOfAnothersFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not root: the file is one's own, and is replaced")
	}
	dir := dirWith(t, map[string]string{"spec.json": "old"})
	if err := os.Chmod(dir+"/spec.json", 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	got, want, after := replaceAs(t, nobody, dir, 3), "operation not permitted", map[string]string{"spec.json": "old"}
	if os.Getuid() != 0 {
		want, after = "<nil>", map[string]string{"spec.json": "nnn", "spec.json" + backupSuffix: "old"}
	}
	if !strings.HasSuffix(got, want) {
		t.Errorf("Replace: %s; want %s", got, want)
	}
	check(t, dir, after)
}

// fd returns a file's descriptor as text.
func fd(file *os.File) string { return strconv.Itoa(int(file.Fd())) }
