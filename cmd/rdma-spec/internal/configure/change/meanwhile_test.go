// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// What another tool changes after a plan was made is not lost: nothing is changed, and the error names the file.
func TestApplyOnlyToWhatWasRead(t *testing.T) {
	for name, meanwhile := range map[string]struct {
		file string
		do   func(n node)
	}{
		"a file that is changed":   {"b", func(n node) { n.set(map[string]string{"b": "theirs"}) }},
		"a file that is relied on": {"c", func(n node) { n.set(map[string]string{"c": "theirs"}) }},
		"a file that is new":       {"d", func(n node) { n.set(map[string]string{"d": "theirs"}) }},
		"a file that is removed": {"b", func(n node) {
			if err := os.Remove(n.path("b")); err != nil {
				n.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"a": "old a", "b": "old b", "c": "old c"})
			plan := n.plan("a", "new a", "b", "new b", "c", "old c", "d", "new d")
			meanwhile.do(n)
			before := scratch.Tree(t, n.dir)
			changedMeanwhile(t, n, n.open().Apply(plan, nil, record.Goal{Feature: "nri"}), meanwhile.file)
			n.check(before)
			if l, err := Read(n.root); err != nil || len(l.Features()) > 0 {
				t.Errorf("features are left: %q, %v", l.Features(), err)
			}
		})
	}
}

// changedMeanwhile checks an error: it is one line, which names a file and says what to do.
func changedMeanwhile(t *testing.T, n node, err error, file string) {
	t.Helper()
	if !errors.Is(err, atomicfile.ErrChanged) || !strings.Contains(err.Error(), n.path(file)+
		": the file has changed in the meantime: rerun the command") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v, want that %s changed meanwhile", err, file)
	}
}

// meanwhileFiles has another tool change a file right before the operation on another one that follows.
type meanwhileFiles struct {
	n            node
	before, file string
}

func (m meanwhileFiles) put(path string, old, content []byte, mode fs.FileMode) error {
	if path == m.n.path(m.before) {
		m.n.set(map[string]string{m.file: "theirs"})
	}
	return atomicfile.Change(path, old, content, mode)
}

// Also what another tool changes while files are written, or restored, is not lost, and the other files are as before.
func TestChangedInTheMiddle(t *testing.T) {
	old := map[string]string{"a": "old a", "b": "old b"}
	applied := map[string]string{"a": "new a", "b": "new b", "new/": "", "new/c": "c"}
	for _, file := range []string{"new/c", "a", "b"} {
		t.Run(file, func(t *testing.T) {
			with := func(files map[string]string) map[string]string {
				all := maps.Clone(files)
				all[file] = "theirs"
				if file == "new/c" {
					all["new/"] = ""
				}
				return all
			}
			n := newNode(t, old)
			l := n.open()
			l.put = meanwhileFiles{n, file, file}.put
			changedMeanwhile(t, n, l.Apply(n.plan("new/c", "c", "a", "new a", "b", "new b"), nil, record.Goal{Feature: "nri"}), file)
			n.check(with(old))
			l.Close()

			n = newNode(t, old)
			n.apply("nri", "new/c", "c", "a", "new a", "b", "new b")
			l = n.open()
			l.put = meanwhileFiles{n, file, file}.put
			changedMeanwhile(t, n, revert(l, nil, "nri"), file)
			n.check(with(applied))
			l.Close()
			var changed *record.Changed
			if err := n.revert("nri"); !errors.As(err, &changed) || changed.Path != n.path(file) {
				t.Errorf("Revert afterwards: %v, want the change of %s", err, file)
			}
		})
	}
}

// What another tool makes of a file while the check runs stays when that fails, and the ledger has what it was.
func TestChangedDuringTheCheck(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old a", "b": "old b"})
	l := n.open()
	err := l.Apply(n.plan("a", "new a", "b", "new b"), func() error {
		n.set(map[string]string{"a": "theirs"})
		return errFull
	}, record.Goal{Feature: "nri"})
	if !errors.Is(err, errFull) || !errors.Is(err, atomicfile.ErrChanged) || !errors.Is(err, ErrNotRestored) {
		t.Errorf("Apply: %v", err)
	}
	n.check(map[string]string{"a": "theirs", "b": "old b"})
	var changed *record.Changed
	if _, err := l.Reversal("nri"); !errors.As(err, &changed) || changed.Path != n.path("a") {
		t.Errorf("Reversal: %v, want the change of a", err)
	}
}
