// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// backup is in the names of backups.
const backup = ".rdma-spec.bak"

// node is a directory of files, and a ledger beside it.
type node struct {
	t         *testing.T
	root, dir string
}

func newNode(t *testing.T, files map[string]string) node {
	t.Helper()
	root := scratch.Dir(t, "node")
	n := node{t, root, filepath.Join(root, "node")}
	n.set(files)
	return n
}

func (n node) path(name string) string { return filepath.Join(n.dir, name) }

func (n node) set(files map[string]string) {
	n.t.Helper()
	scratch.Files(n.t, n.dir, files, 0o640)
}

// check checks that the node has these files and directories, a directory's name ending with a slash, and no others but
// backups.
func (n node) check(want map[string]string) {
	n.t.Helper()
	tree := scratch.Tree(n.t, n.dir)
	maps.DeleteFunc(tree, func(name, _ string) bool { return strings.Contains(name, backup) && want[name] == "" })
	if diff := cmp.Diff(want, tree); diff != "" {
		n.t.Errorf("the node's files (-want +got):\n%s", diff)
	}
}

func (n node) open() *Ledger {
	n.t.Helper()
	l, err := Open(n.root)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(l.Close)
	return l
}

// read reads the ledger.
func (n node) read() *Ledger {
	n.t.Helper()
	l, err := Read(n.root)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// apply opens the ledger, applies a plan of names and contents, two by two, and closes it.
func (n node) apply(feature string, files ...string) {
	n.t.Helper()
	l := n.open()
	defer l.Close()
	if err := l.Apply(n.plan(files...), nil, record.Goal{Feature: feature}); err != nil {
		n.t.Fatal(err)
	}
}

func (n node) plan(files ...string) Plan {
	n.t.Helper()
	var all []File
	for i := 0; i < len(files); i += 2 {
		all = append(all, File{Path: n.path(files[i]), Content: []byte(files[i+1])})
	}
	p, err := Whole(all...)
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

func revert(l *Ledger, check func() error, features ...string) error {
	back, err := l.Reversal(features...)
	if err != nil {
		return err
	}
	return l.Revert(back, check)
}

func (n node) revert(features ...string) error {
	n.t.Helper()
	l := n.open()
	defer l.Close()
	return revert(l, nil, features...)
}

func TestApplyAndRevert(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old a"})
	if err := os.Chmod(n.path("a"), 0o604); err != nil {
		t.Fatal(err)
	}
	n.apply("nri", "new/directory/b", "new b", "a", "new a")
	n.check(map[string]string{"a": "new a", "a" + backup: "old a", "new/": "", "new/directory/": "", "new/directory/b": "new b"})
	if info, err := os.Stat(n.path("a")); err != nil || info.Mode() != 0o604 {
		t.Errorf("the mode is %v, %v; want that of the old file", info.Mode(), err)
	}
	n.apply("nri", "a", "newer a")
	if err := n.revert("nri"); err != nil {
		t.Fatal(err)
	}
	n.check(map[string]string{"a": "old a"})
	if info, err := os.Stat(n.path("a")); err != nil || info.Mode() != 0o604 {
		t.Errorf("the mode is %v, %v; want that of the old file", info.Mode(), err)
	}
	if _, err := os.Stat(n.path("a" + backup)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the backup stays: %v", err)
	}
	if l := n.open(); len(l.Features()) > 0 {
		t.Errorf("features are left: %q", l.Features())
	}
}

// The directory of a file is there for whoever needs it, whatever umask the administrator's shell has.
func TestApply_modeOfNewDirs(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	n := newNode(t, nil)
	n.apply("plugin", "opt/bin/program", "program")
	for _, dir := range []string{"opt", "opt/bin"} {
		if info, err := os.Stat(n.path(dir)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v, %v", dir, info.Mode(), err)
		}
	}
}

// A backup that is lost does not lead to a loss of files, and the error says what to do.
func TestRevertWithALostBackup(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old"})
	n.apply("nri", "a", "new")
	must.Succeed(t, os.Remove(n.path("a"+backup)))
	if _, err := n.read().Reversal("nri"); err == nil || !strings.Contains(err.Error(), "with --forget") {
		t.Errorf("Reversal: %v", err)
	}
	n.check(map[string]string{"a": "new"})
}

func TestApplyAgainChangesNothing(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old"})
	n.apply("nri", "a", "new")
	before := scratch.Read(t, n.open().File())
	info, err := os.Stat(n.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	l := n.read()
	if err := l.Apply(n.plan("a", "new"), func() error { return errors.New("checked") }, record.Goal{Feature: "nri"}); err != nil {
		t.Errorf("Apply of what is there: %v", err)
	}
	if after := scratch.Read(t, l.File()); after != before {
		t.Errorf("the record has changed:\n%s", after)
	}
	if again, err := os.Stat(n.path("a")); err != nil || !os.SameFile(info, again) {
		t.Errorf("the file was replaced, %v", err)
	}
}

func TestRevertFollowsLinks(t *testing.T) {
	n := newNode(t, map[string]string{"target": "old"})
	if err := os.Symlink("target", n.path("link")); err != nil {
		t.Fatal(err)
	}
	n.apply("nri", "link", "new")
	n.check(map[string]string{"target": "new", "link": "new"})
	if err := n.revert("nri"); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(n.path("link")); err != nil || to != "target" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	n.check(map[string]string{"target": "old", "link": "old"})
}

// A file that is a feature's as a whole stays where somebody has changed it. One that is gone is no fault.
func TestRevertRefusesWhatOthersChanged(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old\n", "b": "old\n"})
	n.apply("nri", "a", "old\nours\n", "b", "ours\n", "c", "ours\n")
	n.set(map[string]string{"a": "old\nours\ntheirs\n"})
	if err := os.Remove(n.path("c")); err != nil {
		t.Fatal(err)
	}
	err := n.revert("nri")
	var changed *record.Changed
	if !errors.As(err, &changed) || changed.Path != n.path("a") || changed.Feature != "nri" {
		t.Errorf("Revert: %v, %+v; want their change", err, changed)
	}
	n.check(map[string]string{"a": "old\nours\ntheirs\n", "b": "ours\n"})
	n.set(map[string]string{"a": "old\nours\n"})
	if err := n.revert("nri"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{"a": "old\n", "b": "old\n"})
}

// What others change between two runs stays: the second run starts from it.
func TestRevertKeepsWhatOthersChangedBetween(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old"})
	n.apply("nri", "a", "old ours")
	n.set(map[string]string{"a": "theirs"})
	n.apply("nri", "a", "theirs ours")
	if err := n.revert("nri"); err != nil {
		t.Fatal(err)
	}
	n.check(map[string]string{"a": "theirs"})
}

// A backup has what was before a feature's first change, and a revert that fails has the last one again.
func TestLedgerKeepsTheFirst(t *testing.T) {
	n := newNode(t, map[string]string{"a": "0", "b": "0"})
	for _, version := range []string{"1", "2", "3"} {
		n.apply("nri", "a", version)
	}
	n.apply("limits", "b", "1")
	must.Succeed(t, n.revert("limits"))
	n.check(map[string]string{"a": "3", "a" + backup: "0", "b": "0"})
	l := n.open()
	failed := errors.New("the daemon does not start")
	if err := revert(l, func() error { return failed }, "nri"); !errors.Is(err, failed) {
		t.Error(err)
	}
	l.Close()
	n.check(map[string]string{"a": "3", "a" + backup: "0", "b": "0"})
	must.Succeed(t, n.revert("nri"))
	n.check(map[string]string{"a": "0", "b": "0"})
}

func TestOpenTwice(t *testing.T) {
	n := newNode(t, nil)
	l := n.open()
	if _, err := Open(n.root); err == nil || !strings.Contains(err.Error(),
		"another rdma-spec configure process is running (PID ") {
		t.Errorf("Open: %v", err)
	}
	l.Close()
	n.open()
}

func TestDiff(t *testing.T) {
	n := newNode(t, map[string]string{"a": "one\ntwo\n", "same": "x"})
	got := n.plan("a", "one\n2\n", "same", "x", "new", "n\n", "program", "\x7fELF\x00").Diff()
	want := "--- A\n+++ A\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n--- /dev/null\n+++ NEW\n@@ -0,0 +1 @@\n+n\nBinary files " +
		"/dev/null and PROGRAM differ\n"
	want = strings.NewReplacer("A\n", n.path("a")+"\n", "NEW", n.path("new"), "PROGRAM", n.path("program")).Replace(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
}

func TestReversal_diff(t *testing.T) {
	n := newNode(t, map[string]string{"a": "one\n"})
	n.apply("nri", "a", "two\n", "new", "n\n")
	back, err := n.read().Reversal("nri")
	want := "--- NEW\n+++ /dev/null\n@@ -1 +0,0 @@\n-n\n--- A\n+++ A\n@@ -1 +1 @@\n-two\n+one\n"
	want = strings.NewReplacer("A\n", n.path("a")+"\n", "NEW", n.path("new")).Replace(want)
	if diff := cmp.Diff(want, back.Diff()); diff != "" || err != nil {
		t.Errorf("%v, Diff (-want +got):\n%s", err, diff)
	}
}

// A record that this version does not understand is no empty one.
func TestRead_formats(t *testing.T) {
	for text, want := range map[string]string{
		`{"changes":[]}`:                     "changes.json has format 0, but this version of rdma-spec supports format 1",
		`{"format":2,"files":{"a":"b"}}`:     "changes.json has format 2, but this version of rdma-spec supports format 1",
		`{"format":1,"files":[`:              "changes.json: unexpected EOF",
		``:                                   "changes.json: EOF",
		`{"format":1,"goals":[],"files":[]}`: "",
	} {
		n := newNode(t, nil)
		l := n.open()
		scratch.File(t, l.File(), text, 0o600)
		if _, err := Read(n.root); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// The goal of a feature is what it was asked for last, also where no file changes.
func TestApply_recordsGoals(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old"})
	for _, like := range []string{"runc", "nvidia"} {
		l := n.open()
		goal := record.Goal{Feature: "handler rdma", Asked: map[string]string{"like": like}, Config: "/etc/containerd/config.toml"}
		if err := l.Apply(n.plan("a", "new"), nil, goal); err != nil {
			t.Fatal(err)
		}
		l.Close()
		got, recorded := n.read().Goal("handler rdma")
		if diff := cmp.Diff(goal, got, cmpopts.IgnoreFields(record.Goal{}, "Time")); diff != "" || !recorded || got.Time.IsZero() {
			t.Errorf("%v (-want +got):\n%s", got.Time, diff)
		}
	}
	if err := n.revert("handler rdma"); err != nil {
		t.Error(err)
	}
	if goals := n.read().Goals; len(goals) > 0 {
		t.Errorf("goals are left: %v", goals)
	}
}
