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
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func parsed(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.FromText([]byte(text))
	must.Succeed(t, err)
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

func TestWriteAndRead(t *testing.T) {
	root := scratch.Dir(t, "run")
	p := parsed(t, `
memlock: 16Gi
optIn: {namespaces: [ml-*]}
rules:
- {match: {namespaces: [fabric]}, memlock: memory-limit, ipcLock: always, inject: {functions: [virtual], management: true}}
`)
	must.Succeed(t, kept(t, &Writer{Root: root, Version: "0.9"}).Write(p, "/etc/rdma-spec/config.yaml"))
	got, err := Read(root)
	must.Succeed(t, err)
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

func TestRead_noPolicy(t *testing.T) {
	root := scratch.Dir(t, "run")
	_, err := Read(root)
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "no policy is in force: open "+root+
		"/run/rdma-spec/policy.yaml: no such file or directory" {
		t.Errorf("no directory: %v", err)
	}
	must.Succeed(t, os.Mkdir(filepath.Join(root, "run/rdma-spec"), 0o755))
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Two plugins are registered during an update: the one that registered last is in force, whatever the other does, and
// the other's end changes nothing. Locks belong to open files, so one process can be all of them, and an end that of
// its file.
func TestWriter_duringUpdate(t *testing.T) {
	root := scratch.Dir(t, "run")
	plugin := func() *Writer { return kept(t, &Writer{Root: root}) }
	defaults := parsed(t, "{}")
	old := plugin()
	must.Succeed(t, old.Write(defaults, "old"))
	expect(t, "the old one alone", root, "old")
	young := plugin()
	must.Succeed(t, young.Write(defaults, "young"))
	expect(t, "both", root, "young")
	must.Succeed(t, old.Keep(defaults, "old, reloaded"))
	expect(t, "the old one reloads", root, "young")
	old.Close()
	expect(t, "the old one has ended", root, "young")

	// The runtime has restarted, and the one that registered last is the one that ends.
	last := plugin()
	must.Succeed(t, young.Write(defaults, "young"))
	must.Succeed(t, last.Write(defaults, "last"))
	last.Close()
	if _, err := Read(root); err == nil || !strings.Contains(err.Error(),
		"is out of date: the plugin that wrote the policy has exited") {
		t.Errorf("the writer has ended: %v", err)
	}
	must.Succeed(t, young.Keep(defaults, "young"))
	expect(t, "the one that is left keeps its policy in force", root, "young")
	must.Succeed(t, young.Keep(parsed(t, "memlock: 1Gi"), "young, reloaded"))
	expect(t, "it reloads", root, "young, reloaded")
}

// A plugin that asks again and again whether its policy is in force writes nothing while it is.
func TestKeepWritesOnlyWhatChanges(t *testing.T) {
	root, p := scratch.Dir(t, "run"), parsed(t, "{}")
	w := &Writer{Root: root}
	must.Succeed(t, w.Keep(p, "defaults"))
	before, err := os.Stat(filepath.Join(root, File))
	must.Succeed(t, err)
	must.Succeed(t, w.Keep(p, "defaults"))
	if after, err := os.Stat(filepath.Join(root, File)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file is another one: %v", err)
	}
}

// Another deployment's plugin is a rival while it lives; one's own is none, nor is a file that nobody can trust.
func TestRival(t *testing.T) {
	const pod, other = "DaemonSet.rdma-spec.nri-rdma", "DaemonSet.ml.other"
	for name, test := range map[string]struct{ writer, asks, want string }{
		"the service, and a pod": {"", pod, "an nri-rdma process outside Kubernetes, such as the systemd service, serves " +
			"this node"},
		"a pod, and the service":   {pod, "", "the rdma-spec/nri-rdma DaemonSet serves this node"},
		"pods of two DaemonSets":   {other, pod, "the ml/other DaemonSet serves this node"},
		"two pods of a DaemonSet":  {pod, pod, ""},
		"the service, and another": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t, "run")
			says := func(want string) {
				t.Helper()
				got := ""
				if err := Rival(root, test.asks); err != nil {
					got = err.Error()
				}
				if got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
			says("")
			w := &Writer{Root: root, Deployment: test.writer}
			must.Succeed(t, w.Write(parsed(t, "{}"), "defaults"))
			says(test.want)
			must.Succeed(t, os.Chmod(filepath.Join(root, File), 0o666))
			says("")
			must.Succeed(t, os.Chmod(filepath.Join(root, File), 0o644))
			w.Close()
			says("")
		})
	}
}

// A validator runs beside the plugin, and has no writer.
func TestWriter_validator(t *testing.T) {
	root, p := scratch.Dir(t, "run"), parsed(t, "{}")
	var validator *Writer
	must.Succeed(t, validator.Write(p, "validator"), validator.Keep(p, "validator"))
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the validator has written: %v", err)
	}
	must.Succeed(t, kept(t, &Writer{Root: root}).Write(p, "plugin"))
	must.Succeed(t, validator.Write(p, "validator"), validator.Keep(p, "validator"))
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
	write := func(text string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(text), 0o644) }
	}
	replace := func(old, with string) func(string) error {
		return func(file string) error {
			text, err := os.ReadFile(file)
			return errors.Join(err, write(strings.Replace(string(text), old, with, 1))(file))
		}
	}
	copied := func(file string) error {
		text, err := os.ReadFile(file)
		return errors.Join(err, os.Remove(file), write(string(text))(file))
	}
	for name, test := range map[string]struct {
		spoil func(file string) error
		want  string
	}{
		"a directory that others can write": {func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) },
			"DIR is not trusted: users other than root can write to it (mode 0777)"},
		"a directory that a group can write": {func(file string) error { return os.Chmod(filepath.Dir(file), 0o775) },
			"DIR is not trusted: users other than root can write to it (mode 0775)"},
		"a file that others can write": {func(file string) error { return os.Chmod(file, 0o646) },
			"FILE is not trusted: users other than root can write to it (mode 0646)"},
		"another's file": {func(file string) error { return os.Chown(file, 65534, 65534) },
			"FILE is not trusted: the owner is user 65534, not root"},
		"another's directory": {func(file string) error { return os.Chown(filepath.Dir(file), 65534, 65534) },
			"DIR is not trusted: the owner is user 65534, not root"},
		"a link out of the directory": {func(file string) error {
			elsewhere := filepath.Join(scratch.Dir(t), "policy.yaml")
			return errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file))
		}, "no policy is in force: open FILE: path escapes from parent"},
		"a directory in its place": {func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) },
			"FILE cannot be read as a policy: the file is not a regular file"},
		"an empty file": {write(""), "FILE cannot be read as a policy: the apiVersion is \"\", not rdma-spec/v1alpha1"},
		"not YAML": {write("{"),
			"FILE cannot be read as a policy: error converting YAML to JSON: yaml: line 1: did not find expected node content"},
		"a bare configuration": {write("memlock: 1Gi"),
			"FILE cannot be read as a policy: error unmarshaling JSON: while decoding JSON: json: unknown field \"memlock\""},
		"another version": {replace("v1alpha1", "v9"),
			"FILE cannot be read as a policy: the apiVersion is \"rdma-spec/v9\", not rdma-spec/v1alpha1"},
		"a bad policy": {replace("memlock: unlimited", "memlock: much\n  ipcLok: 1"),
			"FILE cannot be read as a policy: unknown field \"ipcLok\""},
		"a copy": {copied, "FILE is out of date: the plugin that wrote the policy has exited"},
		"a copy that somebody who may only read it has locked": {func(file string) error {
			err := copied(file)
			reader, openErr := os.Open(file)
			t.Cleanup(func() { _ = reader.Close() })
			return errors.Join(err, openErr, unix.FcntlFlock(reader.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}),
				unix.Flock(int(reader.Fd()), unix.LOCK_EX))
		}, "FILE is out of date: the plugin that wrote the policy has exited"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "another's") && os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			root := scratch.Dir(t, "run")
			must.Succeed(t, kept(t, &Writer{Root: root}).Write(parsed(t, "{}"), "defaults"))
			expect(t, "before", root, "defaults")
			file := filepath.Join(root, File)
			must.Succeed(t, test.spoil(file))
			got, err := Read(root)
			if err == nil {
				t.Fatalf("read %+v", got)
			}
			if text := strings.NewReplacer(file, "FILE", filepath.Dir(file), "DIR").Replace(err.Error()); text != test.want {
				t.Errorf("%s\nwant %s", text, test.want)
			}
		})
	}
}

// No reader would trust a directory that others can write, so nothing is written there.
func TestWriterRefusesADirOfOthers(t *testing.T) {
	root := scratch.Dir(t, "run")
	dir := filepath.Join(root, filepath.Dir(File))
	must.Succeed(t, os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777))
	if err := (&Writer{Root: root}).Write(parsed(t, "{}"), "defaults"); err == nil ||
		!strings.Contains(err.Error(), "is not trusted") {
		t.Errorf("%v", err)
	}
	if found, _ := os.ReadDir(dir); len(found) > 0 {
		t.Errorf("written: %v", found)
	}
}

// FuzzRead: whatever the file has, it is a policy, or refused in one line.
func FuzzRead(f *testing.F) {
	f.Add("apiVersion: rdma-spec/v1alpha1\nsource: x\npolicy: {memlock: 1Gi}\n")
	f.Add("apiVersion: rdma-spec/v1alpha1\npolicy: []\n")
	f.Add("policy: {rules: [{}, {}]}\napiVersion: [\n")
	f.Add("")
	root := scratch.Dir(f)
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
		must.Succeed(t, err, written.Truncate(int64(len(text))))
		got, err := Read(root)
		if err == nil && got.Policy == nil || err != nil && (strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "out of date")) {
			t.Errorf("%+v, %q", got, err)
		}
	})
}
