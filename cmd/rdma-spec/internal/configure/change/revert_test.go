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

const (
	original = "version = 2\n\n[grpc]\n  uid = 0\n"
	ofNRI    = original + "\n[nri]\n  disable = false\n"
	ofBoth   = ofNRI + "\n[handlers.rdma]\n  type = \"runc\"\n"
)

// ours are the parts of the features, in a file that others write, too.
var ours = map[string]record.Part{
	"nri":     {Path: []string{"nri", "disable"}, Written: false},
	"handler": {Path: []string{"handlers", "rdma"}, Own: true},
	"import":  {Path: []string{"imports"}, Element: "conf.d/ours-*", Inserted: "imports = [\"conf.d/ours-*\"]\n"},
	"runc":    {Path: []string{"handlers", "runc"}, Written: map[string]any{"type": "runc"}},
	"kata":    {Path: []string{"handlers", "kata"}, Written: map[string]any{"type": "kata"}},
}

// set has a feature set its keys in a file.
func (n node) setParts(feature, file, content string, parts ...string) {
	n.t.Helper()
	plan := n.plan(file, content)
	plan[0].Parts = []record.Part{}
	for _, name := range parts {
		plan[0].Parts = append(plan[0].Parts, ours[name])
	}
	l := n.open()
	defer l.Close()
	if err := l.Apply(plan, nil, record.Goal{Feature: feature}); err != nil {
		n.t.Fatal(err)
	}
}

// What others have changed in a file stays, however they have written it, and only our values go.
func TestRevertTakesKeysOut(t *testing.T) {
	template := "{{ template \"base\" . }}\n"
	for name, test := range map[string]struct{ before, now, want string }{
		"untouched":              {original, ofNRI, original},
		"other lines":            {original, strings.Replace(ofNRI, "uid = 0", "uid = 1", 1), strings.Replace(original, "uid = 0", "uid = 1", 1)},
		"a section behind":       {original, ofNRI + "\n[x]\n  y = 1\n", original + "\n[x]\n  y = 1\n"},
		"a section above":        {original, "a = 1\n" + ofNRI, "a = 1\n" + original},
		"a line in our section":  {original, ofNRI + "  more = 1\n", original + "\n[nri]\n  more = 1\n"},
		"our line":               {original, strings.Replace(ofNRI, "disable = false", "disable = true", 1), ""},
		"written anew":           {original, "[nri]\ndisable = false\n[grpc]\nuid = 0\n", "[grpc]\nuid = 0\n"},
		"dotted":                 {original, "nri.disable = false\na = 1\n", "a = 1\n"},
		"ours taken out by hand": {original, "a = 1\n" + original, "a = 1\n" + original},
		"a table before":         {"[nri]\n", "a = 1\n[nri]\ndisable = false\n", "a = 1\n[nri]\n"},
		"a template":             {template, template + "\n[nri]\n  disable = false\n\n[debug]\n  level = 1\n", template + "\n[debug]\n  level = 1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"a": test.before})
			n.setParts("nri", "a", ofNRI, "nri")
			n.set(map[string]string{"a": test.now})
			if err := n.revert("nri"); err != nil {
				t.Error(err)
			}
			if test.want == "" {
				test.want = test.now
			}
			n.check(map[string]string{"a": test.want})
			if l := n.read(); len(l.Features()) > 0 || len(l.Goals) > 0 {
				t.Errorf("the record has %v, %v", l.Features(), l.Goals)
			}
		})
	}
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", ofNRI, "nri")
	n.set(map[string]string{"a": ofNRI + "[\n"})
	var changed *record.Changed
	if err := n.revert("nri"); !errors.As(err, &changed) || changed.Feature != "nri" || changed.Cause == nil {
		t.Errorf("what is no TOML: %v", err)
	}
	n.check(map[string]string{"a": ofNRI + "[\n"})
}

// A block of ours goes with its lines, also with the end that it gave to the line above.
func TestRevertTakesABlockOut(t *testing.T) {
	for _, text := range []string{"a = 1", "a = 1\n", "", "# only"} {
		n := newNode(t, map[string]string{"a": text})
		n.setParts("handler", "a", string(tomledit.WithBlock([]byte(text), []byte("[handlers.rdma]\n  type = \"runc\"\n"))), "handler")
		if err := n.revert("handler"); err != nil {
			t.Error(err)
		}
		n.check(map[string]string{"a": text})
	}
}

// A table of ours goes with what others have added to it; a file of ours goes where nothing is left in it.
func TestRevertOfOurTable(t *testing.T) {
	n := newNode(t, nil)
	const text = "version = 2\n\n[handlers.rdma]\n  type = \"runc\"\n"
	n.setParts("handler", "d/a", text, "handler")
	n.set(map[string]string{"d/a": "# ours\n" + text + "[handlers.rdma.options]\n  more = 1\n"})
	if err := n.revert("handler"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{})
}

// Tables that are there for those beside them stay while others are, and else go together.
func TestRevertLeavesWhatIsNeeded(t *testing.T) {
	const beside, handler = "\n[handlers.runc]\n  type = \"runc\"\n\n[handlers.kata]\n  type = \"kata\"\n",
		"\n[handlers.rdma]\n  type = \"runc\"\n"
	for name, test := range map[string]struct{ now, want string }{
		"nothing of others":            {"# more\n" + original + beside + handler, "# more\n" + original},
		"more in our handler":          {original + beside + handler + "  more = 1\n", original},
		"a handler of others":          {original + beside + handler + "\n[handlers.x]\n", original + beside + "\n[handlers.x]\n"},
		"one that others have changed": {original + strings.Replace(beside, "kata\"", "other\"", 1) + handler, original + strings.Replace(beside, "kata\"", "other\"", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"a": original})
			n.setParts("handler", "a", original+beside+handler, "handler", "runc", "kata")
			n.set(map[string]string{"a": test.now})
			if err := n.revert("handler"); err != nil {
				t.Error(err)
			}
			n.check(map[string]string{"a": test.want})
		})
	}
}

// Changes of a file are taken back in any order, and what serves several of them goes with the last one.
func TestRevertInAnyOrder(t *testing.T) {
	template := "{{ template \"base\" . }}\n"
	const imports = "imports = [\"conf.d/ours-*\"]\n"
	for _, base := range []string{"", template} {
		for _, order := range [][]string{{"nri", "handler"}, {"handler", "nri"}} {
			n := newNode(t, map[string]string{"a": base + original})
			n.setParts("nri", "a", base+imports+ofNRI, "nri", "import")
			n.apply("nri", "new/conf.d/nri", "nri")
			n.setParts("handler", "a", base+imports+ofBoth, "handler", "import")
			n.apply("handler", "new/conf.d/handler", "handler")
			if err := n.revert(order[0]); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"nri": ofNRI, "handler": original + strings.TrimPrefix(ofBoth, ofNRI)}[order[1]]
			n.check(map[string]string{"a": base + imports + want, "new/": "", "new/conf.d/": "", "new/conf.d/" + order[1]: order[1]})
			if err := n.revert(order[1]); err != nil {
				t.Fatal(err)
			}
			n.check(map[string]string{"a": base + original})
		}
	}
}

// What a feature has changed in several runs is taken back also where others have changed the file between them.
func TestRevertOfRunsAroundAChangeOfOthers(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", ofNRI, "nri")
	n.set(map[string]string{"a": "a = 1\n" + ofNRI})
	n.setParts("nri", "a", "a = 1\n"+ofNRI+"\n[handlers.rdma]\n  type = \"runc\"\n", "nri", "handler")
	if err := n.revert("nri"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{"a": "a = 1\n" + original})

	n.setParts("nri", "a", "a = 1\n"+ofNRI, "nri")
	n.apply("nri", "b", "ours")
	n.setParts("nri", "a", "a = 1\n"+original)
	if diff := cmp.Diff([]string{n.path("b")}, n.read().Paths("nri")); diff != "" {
		t.Error(diff)
	}
}

// The files as they would be without a feature, and what of others is in them.
func TestWithout(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.setParts("nri", "a", ofNRI, "nri")
	n.setParts("handler", "a", ofBoth, "handler")
	n.setParts("handler", "b", "[handlers.rdma]\n  type = \"runc\"\n", "handler")
	n.set(map[string]string{"a": "a = 1\n" + ofBoth})
	for feature, want := range map[string]map[string][]byte{
		"nri":     {n.path("a"): []byte("a = 1\n" + original + strings.TrimPrefix(ofBoth, ofNRI))},
		"handler": {n.path("a"): []byte("a = 1\n" + ofNRI), n.path("b"): nil},
	} {
		got, err := n.read().Without(feature)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", feature, err, diff)
		}
	}
	got, err := n.read().Without()
	if diff := cmp.Diff(map[string][]byte{n.path("a"): []byte("a = 1\n" + original), n.path("b"): nil}, got); diff != "" || err != nil {
		t.Errorf("all: %v (-want +got):\n%s", err, diff)
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
	root := scratch.Folder(t)
	n := node{t, root, filepath.Join(root, "var/snap/microk8s")}
	n.set(map[string]string{"1/args/a": "old", "current": "-> 1"})
	n.apply("nri", "1/args/a", "new", "1/args/b.d/b", "new")
	must.Succeed(t, os.Rename(n.path("1"), n.path("2")), os.Remove(n.path("current")), os.Symlink("2", n.path("current")),
		n.revert("nri"))
	n.check(map[string]string{"2/": "", "2/args/": "", "2/args/a": "old", "current": "-> 2"})
}

func TestForget(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", ofNRI)
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

// What a run left that was killed is removed by the next one: unfinished files.
func TestOpenSweeps(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", ofNRI, "conf.d/b", "b")
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
