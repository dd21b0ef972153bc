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

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	original = "version = 2\n\n[grpc]\n  uid = 0\n"
	ofNRI    = original + "\n[nri]\n  disable = false\n"
	ofBoth   = ofNRI + "\n[handler]\n  type = \"runc\"\n"
)

// What others have changed in a file stays, and only what we have changed is taken back. Where that is the same, or
// where their lines would belong to another table afterwards, the file stays as it is.
func TestRevertKeepsLinesOfOthers(t *testing.T) {
	for name, test := range map[string]struct{ now, want string }{
		"other lines":            {strings.Replace(ofNRI, "uid = 0", "uid = 1", 1), strings.Replace(original, "uid = 0", "uid = 1", 1)},
		"a section behind":       {ofBoth, original + "\n[handler]\n  type = \"runc\"\n"},
		"a section above":        {"a = 1\n" + ofNRI, "a = 1\n" + original},
		"a line in our section":  {ofNRI + "  more = 1\n", ""},
		"our line":               {strings.Replace(ofNRI, "disable = false", "disable = true", 1), ""},
		"written anew":           {"[nri]\ndisable = false\n[grpc]\nuid = 0\n", ""},
		"what is no TOML":        {ofNRI + "[\n", ""},
		"ours taken out by hand": {"a = 1\n" + original, "a = 1\n" + original},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"a": original})
			n.apply("nri", "a", ofNRI)
			n.set(map[string]string{"a": test.now})
			err := n.revert("nri")
			var changed *Changed
			if want := test.want; want != "" {
				n.check(map[string]string{"a": want})
			} else if n.check(map[string]string{"a": test.now}); !errors.As(err, &changed) || changed.Feature != "nri" || changed.Diff == "" {
				t.Errorf("Revert: %v", err)
			}
			if test.want != "" && err != nil {
				t.Error(err)
			}
		})
	}
}

// Changes of a file are taken back in any order, and the last one gives the bytes of before.
func TestRevertInAnyOrder(t *testing.T) {
	template := "{{ template \"base\" . }}\n"
	for _, base := range []string{"", template} {
		for _, order := range [][]string{{"nri", "handler"}, {"handler", "nri"}} {
			n := newNode(t, map[string]string{"a": base + original})
			n.apply("nri", "a", base+ofNRI, "new/conf.d/nri", "nri")
			n.apply("handler", "a", base+ofBoth, "new/conf.d/handler", "handler")
			if err := n.revert(order[0]); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"nri": ofNRI, "handler": original + strings.TrimPrefix(ofBoth, ofNRI)}[order[1]]
			n.check(map[string]string{"a": base + want, "new/": "", "new/conf.d/": "", "new/conf.d/" + order[1]: order[1]})
			if over, err := ReadConfigured(n.root); err != nil || len(over.Overwritten) > 0 {
				t.Errorf("overwritten: %v, %v", over, err)
			}
			if err := n.revert(order[1]); err != nil {
				t.Fatal(err)
			}
			n.check(map[string]string{"a": base + original})
			if kept, err := os.ReadDir(filepath.Dir(n.open().file("any"))); err != nil || len(kept) > 0 {
				t.Errorf("contents that nobody needs: %v, %v", kept, err)
			}
		}
	}
}

// A change for files that several features write goes with the last one of them, and blocks none.
func TestRevertOfWhatServesOthers(t *testing.T) {
	const imported = original + "imports = ['x']\n"
	begin := func() node {
		n := newNode(t, map[string]string{"a": original})
		l := n.open()
		plan := append(n.plan("d/nri", "nri"), n.plan("a", imported)...)
		plan[1].Serves = n.path("d/*")
		if err := l.Apply("nri", plan, nil); err != nil {
			t.Fatal(err)
		}
		l.Close()
		n.apply("handler", "d/handler", "handler")
		n.apply("limits", "other", "limits")
		return n
	}
	for _, order := range [][]string{{"nri", "limits", "handler"}, {"handler", "nri", "limits"}} {
		n := begin()
		for i, feature := range order {
			if err := n.revert(feature); err != nil {
				t.Fatal(err)
			}
			left := strings.Join(order[i+1:], " ")
			if serves := strings.Contains(left, "nri") || strings.Contains(left, "handler"); (n.files()["a"] == imported) != serves {
				t.Errorf("%q, and %q left: %v", order, left, n.files())
			}
		}
		n.check(map[string]string{"a": original})
	}
	n := begin()
	n.set(map[string]string{"a": original + "imports = ['y']\n"})
	l := n.open()
	back, err := l.Reversal("handler", "nri", "limits")
	if err != nil || len(back.Left) != 1 || l.Revert(back, nil) != nil {
		t.Errorf("a line that others have changed: %v, %v", back.Left, err)
	}
	l.Close()
	n.check(map[string]string{"a": original + "imports = ['y']\n"})
}

// What a feature has changed in several runs is taken back also where others have changed the file between them.
func TestRevertOfRunsAroundAChangeOfOthers(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", ofNRI)
	n.set(map[string]string{"a": "a = 1\n" + ofNRI})
	n.apply("nri", "a", "a = 1\n"+ofNRI+"  more = true\n")
	if err := n.revert("nri"); err != nil {
		t.Error(err)
	}
	n.check(map[string]string{"a": "a = 1\n" + original})
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
			if err := l.Apply("plugin", plan, nil); err != nil {
				t.Fatal(err)
			}
			l.Close()
			n.set(test.edited)
			if over, err := ReadConfigured(n.root); err != nil || len(over.Overwritten) > 0 {
				t.Errorf("overwritten: %v, %v", over, err)
			}
			if err := n.revert("plugin"); err != nil {
				t.Error(err)
			}
			n.check(test.want)
			if l := n.open(); len(l.Features()) > 0 {
				t.Errorf("features are left: %q", l.Features())
			}
		})
	}
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

// What a run left that was killed is removed by the next one: contents that nobody needs, and unfinished files, also
// where they are beside the folder. Nothing else is.
func TestOpenSweeps(t *testing.T) {
	n := newNode(t, map[string]string{"a": original})
	n.apply("nri", "a", ofNRI, "conf.d/b", "b")
	const random = "4751997750760398084"
	left := []string{n.path(".a" + random), n.path(".b" + random), filepath.Join(n.root, folder, ".changes.json"+random),
		filepath.Join(n.root, folder, "contents", sum([]byte("x"))), filepath.Join(n.root, folder, "contents", "."+sum([]byte("x"))+"12")}
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
