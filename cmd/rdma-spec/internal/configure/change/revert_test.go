// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const original = "version = 2\n\n[grpc]\n  uid = 0\n"

// Lines of a block.
const (
	nriLines     = "[nri]\n  disable = false\n"
	handlerLines = "[handlers.rdma]\n  type = \"runc\"\n"
	besideLines  = "[handlers.runc]\n  type = \"runc\"\n\n[handlers.kata]\n  type = \"kata\"\n\n"
)

// block returns a text with lines in its block.
func block(text, lines string) string { return string(tomledit.WithBlock([]byte(text), []byte(lines))) }

// ours are the parts of the features, in a file that others write, too.
var ours = map[string]record.Part{
	"nri":     {Path: []string{"nri", "disable"}, Written: false},
	"handler": {Path: []string{"handlers", "rdma"}},
	"import":  {Path: []string{"imports"}, Element: "conf.d/ours-*", Inserted: "imports = [\"conf.d/ours-*\"]\n\n"},
	"runc":    {Path: []string{"handlers", "runc"}, Written: map[string]any{"type": "runc"}},
	"kata":    {Path: []string{"handlers", "kata"}, Written: map[string]any{"type": "kata"}},
}

// setParts has a feature set its parts in a file. Those that are there for a handler of its are no feature's.
func (n node) setParts(feature, file, content string, parts ...string) {
	n.t.Helper()
	plan := n.plan(file, content)
	plan[0].Parts = []record.Part{}
	for _, name := range parts {
		part := ours[name]
		if name != "runc" && name != "kata" {
			part.Feature = feature
		}
		plan[0].Parts = append(plan[0].Parts, part)
	}
	l := n.open()
	defer l.Close()
	if err := l.Apply(plan, nil, record.Goal{Feature: feature}); err != nil {
		n.t.Fatal(err)
	}
}

// What others have changed in a file stays, however they have written it, and only what is ours goes. A file of ours
// goes where nothing is left in it.
func TestRevertTakesPartsOut(t *testing.T) {
	const template = "{{ template \"base\" . }}\n"
	const theirs = "\n[handlers.x]\n"
	of := strings.Fields
	all := of("handler runc kata")
	for name, test := range map[string]struct {
		before, lines string
		parts         []string
		now           string // nothing where nobody has changed it
		want          string // nothing for no file
	}{
		"untouched":              {original, nriLines, of("nri"), "", original},
		"a line without an end":  {"a = 1", handlerLines, of("handler"), "", "a = 1"},
		"nothing but comments":   {"# only", handlerLines, of("handler"), "", "# only"},
		"an empty file":          {"\n", "version = 2\n\n" + handlerLines, of("handler"), "", "\n"},
		"CRLF":                   {"a = 1\r\n", nriLines, of("nri"), "", "a = 1\r\n"},
		"an empty table":         {"[handlers]\n", handlerLines, of("handler"), "", "[handlers]\n"},
		"a template":             {template, nriLines, of("nri"), block(template+"[debug]\n", nriLines), template + "[debug]\n"},
		"a file of ours":         {"", "version = 2\n\n" + handlerLines, of("handler"), "", ""},
		"and a comment":          {"", "", of("handler"), "# ours\nversion = 2\n" + handlerLines + "[handlers.rdma.options]\n", ""},
		"other lines":            {original, nriLines, of("nri"), block("a = 1\n", nriLines) + "[x]\n", "a = 1\n[x]\n"},
		"a line in our section":  {original, nriLines, of("nri"), block(original, nriLines+"  more = 1\n"), original + "[nri]\n  more = 1\n"},
		"our line":               {original, nriLines, of("nri"), "[nri]\n  disable = true\n", "[nri]\n  disable = true\n"},
		"written anew":           {original, nriLines, of("nri"), "[nri]\ndisable = false\n[grpc]\nuid = 0\n", "[grpc]\nuid = 0\n"},
		"as dotted keys":         {original, nriLines, of("nri"), "nri.disable = false\na = 1\n", "a = 1\n"},
		"as an inline table":     {original, handlerLines, of("handler"), "handlers = {rdma = {type = 'runc'}, x = {}}\n", "handlers = {x = {}}\n"},
		"the only one of inline": {original, handlerLines, of("handler"), "a = 1\nhandlers = { rdma = {type = 'runc'} }\n", "a = 1\n"},
		"taken out by hand":      {original, nriLines, of("nri"), "a = 1\n" + original, "a = 1\n" + original},
		"all of a handler":       {original, besideLines + handlerLines, all, "", original},
		"more in our handler":    {original, besideLines + handlerLines, all, block(original, besideLines+handlerLines+"  more = 1\n"), original},
		"a handler of others": {original, besideLines + handlerLines, all, block(original, besideLines+handlerLines) + theirs,
			original + besideLines + theirs[1:]},
		"one that others have changed": {original, besideLines + handlerLines, all,
			block(original, strings.Replace(besideLines, "kata\"", "other\"", 1)+handlerLines),
			original + strings.TrimSuffix(strings.Replace(besideLines, "kata\"", "other\"", 1), "\n")},
		"all of it written anew": {original, besideLines + handlerLines, all, "a = 1\n" + besideLines + handlerLines, "a = 1\n"},
		"a handler of others beside another block": {original, besideLines + handlerLines, all,
			block(besideLines, handlerLines), besideLines},
	} {
		t.Run(name, func(t *testing.T) {
			old := map[string]string{"a": test.before}
			if test.before == "" {
				old = nil
			}
			n := newNode(t, old)
			n.setParts("ours", "a", block(test.before, test.lines), test.parts...)
			if test.now != "" {
				n.set(map[string]string{"a": test.now})
			}
			if err := n.revert("ours"); err != nil {
				t.Error(err)
			}
			want := map[string]string{"a": test.want}
			if test.want == "" {
				want = map[string]string{}
			}
			n.check(want)
			if l := n.read(); len(l.Features()) > 0 || len(l.Goals) > 0 {
				t.Errorf("the record has %v, %v", l.Features(), l.Goals)
			}
		})
	}
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", block(original, nriLines), "nri")
	n.set(map[string]string{"a": "[\n"})
	var changed *record.Changed
	if err := n.revert("nri"); !errors.As(err, &changed) || changed.Feature != "nri" || changed.Cause == nil {
		t.Errorf("what is no TOML: %v", err)
	}
	n.check(map[string]string{"a": "[\n"})
}

// Changes of a file are taken back in any order, and what serves several of them goes with the last one.
func TestRevertInAnyOrder(t *testing.T) {
	const imports = "imports = [\"conf.d/ours-*\"]\n\n"
	const other = "[handlers.other]\n  type = \"runc\"\n"
	for _, base := range []string{"", "{{ template \"base\" . }}\n"} {
		for _, order := range [][]string{{"first", "second"}, {"second", "first"}} {
			n := newNode(t, map[string]string{"a": base + original})
			n.setParts("first", "a", block(base+imports+original, besideLines+handlerLines), "handler", "runc", "kata", "import")
			n.apply("first", "new/conf.d/first", "first")
			plan := n.plan("a", block(base+imports+original, besideLines+handlerLines+other))
			plan[0].Parts = []record.Part{{Feature: "second", Path: []string{"handlers", "other"}},
				{Feature: "second", Path: []string{"imports"}, Element: "conf.d/ours-*"}}
			l := n.open()
			must.Succeed(t, l.Apply(plan, nil, record.Goal{Feature: "second"}))
			l.Close()
			n.apply("second", "new/conf.d/second", "second")
			must.Succeed(t, n.revert(order[0]))
			lines := map[string]string{"first": handlerLines, "second": other}[order[1]]
			n.check(map[string]string{"a": block(base+imports+original, besideLines+lines), "new/": "", "new/conf.d/": "",
				"new/conf.d/" + order[1]: order[1]})
			must.Succeed(t, n.revert(order[1]))
			n.check(map[string]string{"a": base + original})
		}
	}
}

// What a feature has changed in several runs is taken back also where others have changed the file between them.
func TestRevertOfRunsAroundAChangeOfOthers(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", block(original, nriLines), "nri")
	n.set(map[string]string{"a": "a = 1\n" + nriLines})
	n.setParts("nri", "a", block("a = 1\n"+nriLines, handlerLines), "nri", "handler")
	must.Succeed(t, n.revert("nri"))
	n.check(map[string]string{"a": "a = 1\n"})

	n.setParts("nri", "a", block("a = 1\n", nriLines), "nri")
	n.apply("nri", "b", "ours")
	n.setParts("nri", "a", "a = 1\n")
	if diff := cmp.Diff([]string{n.path("b")}, n.read().Paths("nri")); diff != "" {
		t.Error(diff)
	}
}

// The files as they would be without a feature, and what of others is in them.
func TestWithout(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", block(original, nriLines), "nri")
	n.setParts("handler", "a", block(original, nriLines+handlerLines), "handler")
	n.setParts("handler", "b", block("", handlerLines), "handler")
	n.set(map[string]string{"a": block("a = 1\n", nriLines+handlerLines)})
	for features, want := range map[string]map[string][]byte{
		"nri":     {n.path("a"): []byte(block("a = 1\n", handlerLines))},
		"handler": {n.path("a"): []byte(block("a = 1\n", nriLines)), n.path("b"): nil},
		"":        {n.path("a"): []byte("a = 1\n"), n.path("b"): nil},
	} {
		got, err := n.read().Without(strings.Fields(features)...)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", features, err, diff)
		}
	}
}

// A file that people are to edit is theirs then: it stays, and keeps nothing else.
func TestRevertLeavesWhatPeopleEdit(t *testing.T) {
	for name, test := range map[string]struct{ edited, want map[string]string }{
		"untouched": {nil, map[string]string{}},
		"edited":    {map[string]string{"a": "theirs"}, map[string]string{"a": "theirs"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			plan := n.plan("a", "ours", "b", "b")
			plan[0].Editable = true
			l := n.open()
			if err := l.Apply(plan, nil, record.Goal{Feature: "plugin"}); err != nil {
				t.Fatal(err)
			}
			l.Close()
			n.set(test.edited)
			if err := n.revert("plugin"); err != nil {
				t.Error(err)
			}
			n.check(test.want)
			if l := n.read(); len(l.Features()) > 0 {
				t.Errorf("features are left: %q", l.Features())
			}
		})
	}
}

// snapd copies the data of a snap to the directory of a new revision, and leads the link there.
func TestRevertAfterARefreshOfASnap(t *testing.T) {
	root := scratch.Dir(t)
	n := node{t, root, filepath.Join(root, "var/snap/microk8s")}
	n.set(map[string]string{"1/args/a": "old", "current": "-> 1"})
	n.apply("nri", "1/args/a", "new", "1/args/b.d/b", "new")
	must.Succeed(t, os.Rename(n.path("1"), n.path("2")), os.Remove(n.path("current")), os.Symlink("2", n.path("current")),
		n.revert("nri"))
	n.check(map[string]string{"2/": "", "2/args/": "", "2/args/a": "old", "current": "-> 2"})
}

func TestForget(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", "ours")
	n.apply("limits", "b", "limits")
	n.set(map[string]string{"a": "theirs"})
	l := n.open()
	paths, err := l.Forget("nri")
	if diff := cmp.Diff([]string{n.path("a")}, paths); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	l.Close()
	if err := n.revert("nri", "limits"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{"a": "theirs"})
}

// If a file has parts of two features, and one feature is forgotten, only the other feature's part is still recorded.
func TestForgetParts(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", block(original, nriLines), "nri")
	n.setParts("handler", "a", block(original, nriLines+handlerLines), "handler")
	l := n.open()
	paths, err := l.Forget("nri")
	if diff := cmp.Diff([]string{n.path("a")}, paths); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	l.Close()
	if diff := cmp.Diff([]string{"handler"}, n.read().Features()); diff != "" {
		t.Errorf("the recorded features (-want +got):\n%s", diff)
	}
}

// A file that Leave names stays, with its record, so that a later reversal removes it.
func TestReversal_leave(t *testing.T) {
	n := newNode(t, nil)
	n.apply("handler", "spec", "spec", "config", "config")
	l := n.open()
	back, err := l.Reversal("handler")
	if err != nil {
		t.Fatal(err)
	}
	back.Leave(l, n.path("spec"))
	if err := l.Revert(back, nil); err != nil {
		t.Error(err)
	}
	l.Close()
	n.check(map[string]string{"spec": "spec"})
	if err := n.revert("handler"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{})
}

// What a run left that was killed is removed by the next one: unfinished files.
func TestOpenSweeps(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", "ours", "conf.d/b", "b")
	const random = "4751997750760398084"
	left := []string{n.path(".a" + random), n.path(".b" + random), filepath.Join(n.root, record.Dir, ".changes.json"+random)}
	stay := []string{n.path(".a"), n.path(".a12x"), n.path("a1"), n.path("conf.d/.b" + random), n.path(".other" + random),
		n.path(".a20261124"), n.path(".a20261124161500")} // an administrator's own copies
	for _, file := range append(left, stay...) {
		scratch.File(t, file, "x", 0o600)
	}
	n.open()
	for _, file := range append(left, stay...) {
		if _, err := os.Lstat(file); (err == nil) == (len(left) > 0 && cmp.Equal(file, left[0])) {
			t.Errorf("%s: %v", file, err)
		} else if len(left) > 0 {
			left = left[1:]
		}
	}
}
