// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func parsed(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.FromText([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// expect reads the policy in force and compares where it is from.
func expect(t *testing.T, what, root, source string) {
	t.Helper()
	got, err := Read(root)
	if err != nil || got.Source != source {
		t.Errorf("%s: %+v, %v; want the policy of %s", what, got, err, source)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	root := scratch.Folder(t, "run")
	p := parsed(t, `
memlock: 16Gi
optIn: {namespaces: [ml-*]}
repair: {mode: off}
rules:
- {match: {namespaces: [fabric]}, memlock: memory-limit, ipcLock: always, inject: {functions: [virtual], management: true}}
`)
	do(t, kept(t, &Writer{Root: root, Version: "0.9"}).Write(p, "/etc/rdma-spec/config.yaml"))
	got, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Config(), got.Policy.Config()); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	got.Policy = nil
	want := InForce{Source: "/etc/rdma-spec/config.yaml", Path: filepath.Join(root, File), Version: "0.9"}
	if *got != want {
		t.Errorf("read %+v, want %+v", *got, want)
	}
	for path, mode := range map[string]fs.FileMode{filepath.Dir(File): 0o755, File: 0o644} {
		if info, err := os.Stat(filepath.Join(root, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestNobodyHasWritten(t *testing.T) {
	root := scratch.Folder(t, "run")
	_, err := Read(root)
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "no policy is in force: open "+root+
		"/run/rdma-spec/policy.yaml: no such file or directory" {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(root, "run/rdma-spec"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Two plugins are registered during an update: the one that registered last is in force, whatever the other does, and
// the other's end changes nothing. Locks belong to open files, so one process can be all of them, and an end that of its
// file.
func TestUpdate(t *testing.T) {
	root := scratch.Folder(t, "run")
	plugin := func() *Writer { return kept(t, &Writer{Root: root}) }
	defaults := parsed(t, "{}")
	old := plugin()
	do(t, old.Write(defaults, "old"))
	expect(t, "the old one alone", root, "old")
	young := plugin()
	do(t, young.Write(defaults, "young"))
	expect(t, "both", root, "young")
	do(t, old.Keep(defaults, "old, reloaded"))
	expect(t, "the old one reloads", root, "young")
	old.Close()
	expect(t, "the old one has ended", root, "young")

	// The runtime has restarted, and the one that registered last is the one that ends.
	last := plugin()
	do(t, young.Write(defaults, "young"))
	do(t, last.Write(defaults, "last"))
	last.Close()
	if _, err := Read(root); err == nil || !strings.Contains(err.Error(),
		"is out of date: the plugin that wrote it has ended") {
		t.Errorf("the writer has ended: %v", err)
	}
	do(t, young.Keep(defaults, "young"))
	expect(t, "the one that is left keeps its policy in force", root, "young")
	do(t, young.Keep(parsed(t, "memlock: 1Gi"), "young, reloaded"))
	expect(t, "it reloads", root, "young, reloaded")
}

// A plugin that asks again and again whether its policy is in force writes nothing while it is.
func TestKeepWritesOnlyWhatChanges(t *testing.T) {
	root, p := scratch.Folder(t, "run"), parsed(t, "{}")
	w := &Writer{Root: root}
	do(t, w.Keep(p, "defaults"))
	before, err := os.Stat(filepath.Join(root, File))
	if err != nil {
		t.Fatal(err)
	}
	do(t, w.Keep(p, "defaults"))
	if after, err := os.Stat(filepath.Join(root, File)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file is another one: %v", err)
	}
}

// A validator runs beside the plugin, and has no writer.
func TestValidator(t *testing.T) {
	root, p := scratch.Folder(t, "run"), parsed(t, "{}")
	var validator *Writer
	do(t, errors.Join(validator.Write(p, "validator"), validator.Keep(p, "validator")))
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the validator has written: %v", err)
	}
	do(t, kept(t, &Writer{Root: root}).Write(p, "plugin"))
	do(t, errors.Join(validator.Write(p, "validator"), validator.Keep(p, "validator")))
	expect(t, "a validator beside the plugin", root, "plugin")
}

// kept keeps a writer alive until the end of the test: what nobody refers to is collected, and its lock goes with it.
func kept(t *testing.T, w *Writer) *Writer {
	t.Helper()
	t.Cleanup(w.Close)
	return w
}

// TestRefused: a file that nobody should judge by is refused, in one line.
func TestRefused(t *testing.T) {
	write := func(root, text string) error { return os.WriteFile(filepath.Join(root, File), []byte(text), 0o644) }
	replace := func(old, with string) func(t *testing.T, root string) error {
		return func(_ *testing.T, root string) error {
			text, err := os.ReadFile(filepath.Join(root, File))
			return errors.Join(err, write(root, strings.Replace(string(text), old, with, 1)))
		}
	}
	for name, test := range map[string]struct {
		spoil func(t *testing.T, root string) error
		want  string
	}{
		"a folder that others can write": {func(_ *testing.T, root string) error {
			return os.Chmod(filepath.Join(root, filepath.Dir(File)), 0o777)
		}, "DIR is not trusted: users other than root can write to it (mode 0777)"},
		"a folder that a group can write": {func(_ *testing.T, root string) error {
			return os.Chmod(filepath.Join(root, filepath.Dir(File)), 0o775)
		}, "DIR is not trusted: users other than root can write to it (mode 0775)"},
		"a file that others can write": {func(_ *testing.T, root string) error {
			return os.Chmod(filepath.Join(root, File), 0o646)
		}, "FILE is not trusted: users other than root can write to it (mode 0646)"},
		"another's file": {func(t *testing.T, root string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			return os.Chown(filepath.Join(root, File), 65534, 65534)
		}, "FILE is not trusted: it belongs to user 65534, not to root"},
		"another's folder": {func(t *testing.T, root string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			return os.Chown(filepath.Join(root, filepath.Dir(File)), 65534, 65534)
		}, "DIR is not trusted: it belongs to user 65534, not to root"},
		"a link out of the folder": {func(t *testing.T, root string) error {
			elsewhere := filepath.Join(scratch.Folder(t), "policy.yaml")
			return errors.Join(os.Rename(filepath.Join(root, File), elsewhere), os.Symlink(elsewhere, filepath.Join(root, File)))
		}, "no policy is in force: open FILE: path escapes from parent"},
		"a folder in its place": {func(_ *testing.T, root string) error {
			return errors.Join(os.Remove(filepath.Join(root, File)), os.Mkdir(filepath.Join(root, File), 0o755))
		}, "FILE cannot be read as a policy: it is not a regular file of at most 4194304 bytes"},
		"an empty file": {func(_ *testing.T, root string) error { return write(root, "") },
			"FILE cannot be read as a policy: its apiVersion is \"\", not rdma-spec/v1alpha1"},
		"not YAML": {func(_ *testing.T, root string) error { return write(root, "{") },
			"FILE cannot be read as a policy: error converting YAML to JSON: yaml: line 1: did not find expected node content"},
		"a bare configuration": {func(_ *testing.T, root string) error { return write(root, "memlock: 1Gi") },
			"FILE cannot be read as a policy: error unmarshaling JSON: while decoding JSON: json: unknown field \"memlock\""},
		"another version": {replace("v1alpha1", "v9"),
			"FILE cannot be read as a policy: its apiVersion is \"rdma-spec/v9\", not rdma-spec/v1alpha1"},
		"a bad policy": {replace("memlock: unlimited", "memlock: much\n  ipcLok: 1"),
			"FILE cannot be read as a policy: unknown field \"ipcLok\""},
		"a copy": {func(_ *testing.T, root string) error {
			text, err := os.ReadFile(filepath.Join(root, File))
			return errors.Join(err, os.Remove(filepath.Join(root, File)), write(root, string(text)))
		}, "FILE is out of date: the plugin that wrote it has ended"},
		"a copy that somebody who may only read it has locked": {func(t *testing.T, root string) error {
			text, err := os.ReadFile(filepath.Join(root, File))
			err = errors.Join(err, os.Remove(filepath.Join(root, File)), write(root, string(text)))
			reader, openErr := os.Open(filepath.Join(root, File))
			t.Cleanup(func() { _ = reader.Close() })
			return errors.Join(err, openErr, unix.FcntlFlock(reader.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}),
				unix.Flock(int(reader.Fd()), unix.LOCK_EX))
		}, "FILE is out of date: the plugin that wrote it has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Folder(t, "run")
			do(t, kept(t, &Writer{Root: root}).Write(parsed(t, "{}"), "defaults"))
			expect(t, "before", root, "defaults")
			do(t, test.spoil(t, root))
			got, err := Read(root)
			if err == nil {
				t.Fatalf("read %+v", got)
			}
			text := strings.NewReplacer(filepath.Join(root, File), "FILE", filepath.Join(root, filepath.Dir(File)),
				"DIR").Replace(err.Error())
			if text != test.want {
				t.Errorf("%s\nwant %s", text, test.want)
			}
		})
	}
}

// No reader would trust a folder that others can write, so nothing is written there.
func TestWriterRefusesAFolderOfOthers(t *testing.T) {
	root := scratch.Folder(t, "run")
	folder := filepath.Join(root, filepath.Dir(File))
	do(t, errors.Join(os.Mkdir(folder, 0o755), os.Chmod(folder, 0o777)))
	if err := (&Writer{Root: root}).Write(parsed(t, "{}"), "defaults"); err == nil ||
		!strings.Contains(err.Error(), "is not trusted") {
		t.Errorf("%v", err)
	}
	if found, _ := os.ReadDir(folder); len(found) > 0 {
		t.Errorf("written: %v", found)
	}
}

// FuzzRead: whatever the file has, it is a policy, or refused in one line.
func FuzzRead(f *testing.F) {
	f.Add("apiVersion: rdma-spec/v1alpha1\nsource: x\npolicy: {memlock: 1Gi}\n")
	f.Add("apiVersion: rdma-spec/v1alpha1\npolicy: []\n")
	f.Add("policy: {rules: [{}, {}]}\napiVersion: [\n")
	f.Add("")
	root := scratch.Folder(f)
	path := filepath.Join(root, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.Fatal(err)
	}
	written, err := os.Create(path)
	if err == nil {
		err = lock(written)
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := written.WriteAt([]byte(text), 0)
		if err := errors.Join(err, written.Truncate(int64(len(text)))); err != nil {
			t.Fatal(err)
		}
		got, err := Read(root)
		if err == nil && got.Policy == nil || err != nil && (strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "out of date")) {
			t.Errorf("%+v, %q", got, err)
		}
	})
}
