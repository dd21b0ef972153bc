// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestWrite(t *testing.T) {
	dir := dirWith(t, map[string]string{"old": "old"})
	if err := os.Chmod(dir+"/old", 0o604); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"old": 0o604, "new": 0o755} {
		if err := Write(dir+"/"+name, []byte("new"), 0o755); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir + "/" + name); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
	check(t, dir, map[string]string{"old": "new", "new": "new"})
	if err := Write(dir, nil, 0o755); err == nil {
		t.Error("a directory is written")
	}
}

// A file keeps its extended attributes, such as SELinux' label, whichever function replaces it.
func TestCopyAttributes_extended(t *testing.T) {
	dir := dirWith(t, map[string]string{"old": "old"})
	file := dir + "/old"
	err := unix.Setxattr(file, "user.test", []byte("value"), 0)
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system of temporary files has no extended attributes")
	}
	if err != nil {
		t.Fatal(err)
	}
	replace := func() error { _, err := Replace(file, []byte("newer")); return err }
	for name, replace := range map[string]func() error{"Write": func() error { return Write(file, []byte("new"), 0o644) }, "Replace": replace} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		value := make([]byte, 100)
		if n, err := unix.Getxattr(file, "user.test", value); err != nil || string(value[:max(n, 0)]) != "value" {
			t.Errorf("%s: the attribute is %q, %v", name, value[:max(n, 0)], err)
		}
	}
}

// A signature of the old content is not copied: it would be invalid for the new content, so the kernel would not let
// any process read the file.
func TestSignaturesAreNotKept(t *testing.T) {
	dir := dirWith(t, map[string]string{"old": "old"})
	file := dir + "/old"
	if err := unix.Setxattr(file, "security.ima", []byte{3, 1}, 0); err != nil {
		t.Skipf("no attribute of the kernel can be set here: %v", err)
	}
	if err := Write(file, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Getxattr(file, "security.ima", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the new file has the signature of the old one: %d bytes, %v", n, err)
	}
}

// A file is changed only if its content is still the one on which the change is based.
func TestChange(t *testing.T) {
	for name, test := range map[string]struct {
		files   map[string]string
		old     []byte
		changed bool
	}{
		"a new file":                       {nil, nil, true},
		"a file":                           {map[string]string{"f": "old"}, []byte("old"), true},
		"an empty file":                    {map[string]string{"f": ""}, []byte{}, true},
		"a file that somebody changed":     {map[string]string{"f": "theirs"}, []byte("old"), false},
		"a file that somebody made":        {map[string]string{"f": "theirs"}, nil, false},
		"an empty file that somebody made": {map[string]string{"f": ""}, nil, false},
		"a file that somebody removed":     {nil, []byte("old"), false},
		"an empty file that is removed":    {nil, []byte{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := dirWith(t, test.files)
			err := Change(dir+"/f", test.old, []byte("new"), 0o644)
			switch {
			case test.changed && err != nil, !test.changed && (err == nil || err.Error() != "cannot write "+dir+
				"/f: the file has changed in the meantime: rerun the command"):
				t.Errorf("Change: %v", err)
			}
			want := map[string]string{}
			maps.Copy(want, test.files)
			if test.changed {
				want["f"] = "new"
			}
			check(t, dir, want)

			dir = dirWith(t, test.files)
			if err := Change(dir+"/f", test.old, nil, 0); (err == nil) != test.changed {
				t.Errorf("Change to none: %v", err)
			}
			if delete(want, "f"); !test.changed {
				maps.Copy(want, test.files)
			}
			check(t, dir, want)
		})
	}
}

// The program's own file gets the program's mode and owner, whatever others have changed, and no other user can open it
// before.
func TestOwn(t *testing.T) {
	file := filepath.Join(scratch.With(t, map[string]string{"a": "old"}, 0o666), "a")
	if os.Getuid() == 0 {
		must.Succeed(t, os.Chown(file, 1, 1))
	}
	held := false
	err := Own(file, []byte("new"), 0o644, func(pending *os.File) error {
		info, err := pending.Stat()
		held = err == nil && info.Mode().Perm() == 0o600 && scratch.Read(t, pending.Name()) == "new"
		return err
	})
	must.Succeed(t, err)
	info, err := os.Stat(file)
	must.Succeed(t, err)
	owner, _ := info.Sys().(*syscall.Stat_t)
	if got := scratch.Read(t, file); !held || got != "new" || info.Mode() != 0o644 || int(owner.Uid) != os.Getuid() {
		t.Errorf("held: %v, %q, mode %v, owner %d", held, got, info.Mode(), owner.Uid)
	}
	failed := errors.New("it is locked")
	if err := Own(file, []byte("newer"), 0o644, func(*os.File) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "new"}, scratch.Tree(t, filepath.Dir(file))); diff != "" {
		t.Errorf("after an error (-want +got):\n%s", diff)
	}
}
