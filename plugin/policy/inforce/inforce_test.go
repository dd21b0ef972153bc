// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// node is a root with this machine's proc and an empty run.
func node(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := errors.Join(os.Symlink("/proc", filepath.Join(root, "proc")), os.Mkdir(filepath.Join(root, "run"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return root
}

func parsed(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.FromText([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// plugin is the writer of another process, which runs until end is called.
func plugin(t *testing.T, root string) (w *Writer, end func()) {
	t.Helper()
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}
	t.Cleanup(end)
	return &Writer{Root: root, me: func(root string) (process, error) { return find(root, sleep.Process.Pid) }}, end
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
	root := node(t)
	p := parsed(t, `
memlock: 16Gi
optIn: {namespaces: [ml-*]}
repair: {mode: off}
rules:
- {match: {namespaces: [fabric]}, memlock: memory-limit, ipcLock: always, inject: {functions: [virtual], management: true}}
`)
	do(t, (&Writer{Root: root}).Write(p, "/etc/rdma-spec/config.yaml"))
	got, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Config(), got.Policy.Config()); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	got.Policy = nil
	want := InForce{Source: "/etc/rdma-spec/config.yaml", Path: filepath.Join(root, File), PID: os.Getpid()}
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
	root := node(t)
	_, err := Read(root)
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "no policy is in force: open "+root+"/run/rdma-spec/policy.yaml: no such file or directory" {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(root, "run/rdma-spec"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Two plugins are registered during an update: the one that registered last is in force, whatever the other does, and the other's end
// changes nothing.
func TestUpdate(t *testing.T) {
	root, p := node(t), parsed(t, "{}")
	old, endOld := plugin(t, root)
	do(t, old.Write(p, "old"))
	expect(t, "the old one alone", root, "old")
	young, endYoung := plugin(t, root)
	do(t, young.Write(p, "young"))
	expect(t, "both", root, "young")
	do(t, old.Keep(p, "old, reloaded"))
	expect(t, "the old one reloads", root, "young")
	endOld()
	expect(t, "the old one has ended", root, "young")

	// The runtime has restarted, and the one that registered last is the one that ends.
	other, endOther := plugin(t, root)
	do(t, young.Write(p, "young"))
	do(t, other.Write(p, "other"))
	endOther()
	if _, err := Read(root); err == nil || !strings.Contains(err.Error(), "is out of date: the plugin that wrote it, process ") {
		t.Errorf("the writer has ended: %v", err)
	}
	do(t, young.Keep(p, "young"))
	expect(t, "the one that is left keeps its policy in force", root, "young")
	do(t, young.Keep(parsed(t, "memlock: 1Gi"), "young, reloaded"))
	expect(t, "it reloads", root, "young, reloaded")
	endYoung()
}

// A plugin that asks again and again whether its policy is in force writes nothing while it is.
func TestKeepWritesOnlyWhatChanges(t *testing.T) {
	root, p := node(t), parsed(t, "{}")
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
	root, p := node(t), parsed(t, "{}")
	var validator *Writer
	do(t, errors.Join(validator.Write(p, "validator"), validator.Keep(p, "validator")))
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the validator has written: %v", err)
	}
	do(t, (&Writer{Root: root}).Write(p, "plugin"))
	do(t, errors.Join(validator.Write(p, "validator"), validator.Keep(p, "validator")))
	expect(t, "a validator beside the plugin", root, "plugin")
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
			elsewhere := filepath.Join(t.TempDir(), "policy.yaml")
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
		"another version": {replace("v1alpha1", "v9"), "FILE cannot be read as a policy: its apiVersion is \"rdma-spec/v9\", not rdma-spec/v1alpha1"},
		"a bad policy":    {replace("memlock: unlimited", "memlock: much\n  ipcLok: 1"), "FILE cannot be read as a policy: unknown field \"ipcLok\""},
		"another boot": {replace("bootID: ", "bootID: x"),
			fmt.Sprintf("FILE is out of date: the plugin that wrote it, process %d, has ended: the node has booted since", os.Getpid())},
		"another process with its ID": {replace("startTime: ", "startTime: 1"),
			fmt.Sprintf("FILE is out of date: the plugin that wrote it, process %d, has ended: another process has its ID", os.Getpid())},
		"no such process": {replace("pid: ", "pid: 99999"),
			fmt.Sprintf("FILE is out of date: the plugin that wrote it, process 99999%d, has ended: no such process", os.Getpid())},
	} {
		t.Run(name, func(t *testing.T) {
			root := node(t)
			do(t, (&Writer{Root: root}).Write(parsed(t, "{}"), "defaults"))
			expect(t, "before", root, "defaults")
			do(t, test.spoil(t, root))
			got, err := Read(root)
			if err == nil {
				t.Fatalf("read %+v", got)
			}
			text := strings.NewReplacer(filepath.Join(root, File), "FILE", filepath.Join(root, filepath.Dir(File)), "DIR").Replace(err.Error())
			if text != test.want {
				t.Errorf("%s\nwant %s", text, test.want)
			}
		})
	}
}

// A process that has ended and has not been waited for is not one that runs.
func TestZombie(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"proc/sys/kernel/random/boot_id": "b\n",
		"proc/7/stat":                    "7 (a ) S b) Z 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n",
		"proc/8/stat":                    "8 (a ) S b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n",
		"proc/9/stat":                    "9 (a) S\n",
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	for pid, want := range map[int]error{7: errEnded, 8: nil, 9: errEnded, 10: errEnded} {
		if got, err := find(root, pid); !errors.Is(err, want) || err == nil && got != (process{8, 4711, "b"}) {
			t.Errorf("process %d: %+v, %v, want %v", pid, got, err, want)
		}
	}
}

// The writer is named by the ID that it has on the node, and not written where that is unknown.
func TestWriterWithoutProc(t *testing.T) {
	root := t.TempDir()
	err := (&Writer{Root: root}).Write(parsed(t, "{}"), "defaults")
	if err == nil || !strings.Contains(err.Error(), "the ID of this process on the node is unknown") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "run")); err == nil {
		t.Error("something was written")
	}
}

// No reader would trust a folder that others can write, so nothing is written there.
func TestWriterRefusesAFolderOfOthers(t *testing.T) {
	root := node(t)
	folder := filepath.Join(root, filepath.Dir(File))
	do(t, errors.Join(os.Mkdir(folder, 0o755), os.Chmod(folder, 0o777)))
	if err := (&Writer{Root: root}).Write(parsed(t, "{}"), "defaults"); err == nil || !strings.Contains(err.Error(), "is not trusted") {
		t.Errorf("%v", err)
	}
	if found, _ := os.ReadDir(folder); len(found) > 0 {
		t.Errorf("written: %v", found)
	}
}
