// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package tomledit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/chance"
)

func TestSet(t *testing.T) {
	for name, test := range map[string]struct {
		before, key string
		value       any
		after       string
	}{
		"a value, with its comment kept":   {"x = true # why\ny = 1\n", "x", false, "x = false # why\ny = 1\n"},
		"the same value":                   {"x   =  'v' # why", "x", "v", "x   =  'v' # why"},
		"a value of odd quoting":           {"\"x\"\t=\t'''\nlong\n'''\n", "x", "v", "\"x\"\t=\t\"v\"\n"},
		"a list":                           {"x = [\n 'a',\n]\n", "x", []any{"a", "b"}, "x = [\"a\", \"b\"]\n"},
		"a byte order mark":                {"\xef\xbb\xbf[a]\n", "w", int64(3), "\xef\xbb\xbfw = 3\n\n[a]\n"},
		"a byte order mark before a value": {"\xef\xbb\xbfw = 1\n", "w", int64(3), "\xef\xbb\xbfw = 3\n"},
		"a key on top":                     {"v = 2\n\n# a\n[a]\n", "w", int64(3), "v = 2\nw = 3\n\n# a\n[a]\n"},
		"a key on top of CRLF":             {"v = 2\r\n[a]\r\n", "w", int64(3), "v = 2\r\nw = 3\r\n[a]\r\n"},
		"a key on top of headers":          {"# licence\n\n# a\n[a]\n", "w", int64(3), "# licence\n\nw = 3\n\n# a\n[a]\n"},
		"a key below comments":             {"# nothing here", "w", int64(3), "# nothing here\nw = 3\n"},
		"a key below a last line":          {"v = 2", "w", int64(3), "v = 2\nw = 3"},
		"strings that look like headers":   {"y = '''\n[b]\nx = 1\n'''\n", "x", true, "y = '''\n[b]\nx = 1\n'''\nx = true\n"},
		"quotes in a string":               {"", "x", "\"\\\n\x7f", "x = \"\\\"\\\\\\n\\u007F\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Set([]byte(test.before), test.value, test.key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.after, string(got)); diff != "" {
				t.Errorf("Set (-want +got):\n%s", diff)
			}
			again, err := Set(got, test.value, test.key)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("a second Set: %v\n%s", err, again)
			}
		})
	}
	for text, want := range map[string]string{"a = \n": "toml: ", "[[x]]\ny = 1\n": "x cannot be changed", "[x]\ny = 1\n": "x cannot be changed",
		"x.y = 1\n": "x cannot be changed: "} {
		if _, err := Set([]byte(text), true, "x"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Set in %q: %v, want %s", text, err, want)
		}
	}
}

// Tables are written below all that a document has, with what is in them.
func TestTables(t *testing.T) {
	tree := map[string]any{"r": map[string]any{"a.b": map[string]any{"type": "v2", "args": []any{"a", "b"}, "none": map[string]any{},
		"options": map[string]any{"Systemd": true, "N": int64(1)}}}}
	const want = "[r.\"a.b\"]\n  args = [\"a\", \"b\"]\n  none = {}\n  type = \"v2\"\n\n[r.\"a.b\".options]\n  N = 1\n  Systemd = true\n"
	got, err := Tables(tree)
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if parsed, err := Parse(got); err != nil || !Same(parsed, tree) {
		t.Errorf("%v: %v", err, parsed)
	}
	if _, err := Tables(map[string]any{"x": map[string]any{"y": struct{}{}}}); err == nil {
		t.Error("what is no value is written")
	}
}

func TestAdd(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"to no list":       {"v = 2\n[a]\n", "v = 2\ni = [\"new\"]\n[a]\n"},
		"to an empty list": {"i = [ ] # why\n", "i = [\"new\" ] # why\n"},
		"to a list":        {"i = ['a', \"b\"] # why\n", "i = ['a', \"b\", \"new\"] # why\n"},
		"to a list on many lines": {"i = [\n  'a', # first\n  # second\n  'b', # last\n]\n",
			"i = [\n  'a', # first\n  # second\n  'b', \"new\", # last\n]\n"},
		"to a list without values": {"i = [\n  # none\n]\n", "i = [\"new\"\n  # none\n]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Add([]byte(test.before), "new", "i")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.after, string(got)); diff != "" {
				t.Errorf("Add (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := Add([]byte("i = 1\n"), "new", "i"); err == nil {
		t.Error("Add to a number: no error")
	}
}

// An edit of any document sets the value, and removes no byte where it adds a key. Set checks the other keys.
func TestSetInRandomDocuments(t *testing.T) {
	random := chance.New(t)
	edits := 0
	for range 3000 {
		text := randomDocument(random)
		before, err := Parse(text)
		if err != nil {
			continue // a table written twice
		}
		after, err := Set(text, false, "disable")
		if err != nil {
			continue // such as where it is a table
		}
		edits++
		tree, err := Parse(after)
		if err != nil || tree["disable"] != false {
			t.Fatalf("%v: %v in\n%s", err, tree["disable"], after)
		}
		_, existed := before["disable"]
		if prefix, suffix := common(text, after); !existed && prefix+suffix != len(text) {
			t.Fatalf("Set removed bytes:\n%s\n---\n%s", text, after)
		}
		if added, err := Add(text, "new", "x"); err == nil {
			if prefix, suffix := common(text, added); prefix+suffix != len(text) {
				t.Fatalf("Add removed bytes:\n%s\n---\n%s", text, added)
			}
		}
	}
	if edits < 500 {
		t.Errorf("%d edits, want more", edits)
	}
}

// common returns how many bytes two texts share at their beginnings and, behind those, at their ends.
func common(a, b []byte) (prefix, suffix int) {
	for prefix < min(len(a), len(b)) && a[prefix] == b[prefix] {
		prefix++
	}
	for suffix < min(len(a), len(b))-prefix && a[len(a)-1-suffix] == b[len(b)-1-suffix] {
		suffix++
	}
	return prefix, suffix
}

// randomDocument returns a document that may be invalid because it defines a table twice.
func randomDocument(random *rand.Rand) []byte {
	newline := []string{"\n", "\n", "\r\n"}[random.IntN(3)]
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	key := func() string {
		return pick("plugins", "nri", `"nri"`, "'nri'", "disable", "other", `"a.b"`, "x", "y", "z")
	}
	var value func(depth int) string
	value = func(depth int) string {
		switch n := random.IntN(10); {
		case n == 0 && depth < 2:
			return fmt.Sprintf("{ %s = %s, %s = %s }", key(), value(depth+1), key(), value(depth+1))
		case n == 1 && depth < 2:
			return "[" + value(depth+1) + "," + newline + " # in a list" + newline + value(depth+1) + "]"
		}
		return pick("true", "false", "1", "-0x1F", "1.5", "nan", "'[nri]'", `"# \" no comment"`,
			"1979-05-27T07:32:00Z", "07:32:00",
			"'''"+newline+"[plugins.nri]"+newline+"disable = 1'''", "{}", "[]")
	}
	var b bytes.Buffer
	for range random.IntN(12) {
		indent := pick("", "", "  ", "\t")
		switch n := random.IntN(6); n {
		case 0:
			b.WriteString(newline)
		case 1:
			b.WriteString(indent + "# comment [x] = 1" + newline)
		case 2:
			b.WriteString(indent + pick("[plugins]", "[plugins.nri]", "[ plugins . 'nri' ]", "[plugins.nri.x]", "[[list]]",
				"[other]", "[plugins.other]", "[nri]") +
				pick("", " # ]") + newline)
		case 3:
			b.WriteString(indent + key() + " . " + key() + "=" + value(0) + newline)
		default:
			b.WriteString(indent + key() + " = " + value(0) + pick("", " # why") + newline)
		}
	}
	text := b.Bytes()
	if random.IntN(3) == 0 {
		text = bytes.TrimRight(text, "\r\n")
	}
	return text
}

// FuzzSet checks that no document makes an edit panic or break what it does not touch.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{"", "a = 1", "[plugins]\nnri = {}", "[plugins.nri]\r\ndisable = true",
		"plugins.nri.x = [1,\n2]", "[[plugins]]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		after, err := Set(text, false, "disable")
		if err != nil {
			return
		}
		if again, err := Set(after, false, "disable"); err != nil || !bytes.Equal(again, after) {
			t.Errorf("a second Set: %v\n%q\n%q", err, after, again)
		}
	})
}

// A value goes wherever it is written, with the tables that it is, and every other byte stays.
func TestDelete(t *testing.T) {
	for name, test := range map[string]struct{ before, path, after string }{
		"a line, and its comment":   {"[a]\nx = true # why\ny = 1\n", "a x", "[a]\ny = 1\n"},
		"nothing":                   {"[a]\ny = 1\n", "a x", "[a]\ny = 1\n"},
		"a byte order mark":         {"\xef\xbb\xbfa = 1\nb = 1\n", "a", "\xef\xbb\xbfb = 1\n"},
		"a section at the end":      {"v = 2\n\n[a]\n  x = true\n", "a", "v = 2\n"},
		"a section with children":   {"[a]\nx = 1\n\n[a.b]\ny = 1\n\n[c]\nz = 1\n", "a", "\n[c]\nz = 1\n"},
		"a section between others":  {"[b]\n\n[a]\nx = 1\n\n[c]\n", "a", "[b]\n\n[c]\n"},
		"the tables around it":      {"[a]\n[a.b]\nx = 1\n[a.b.c]\nx = 1\n[d]\n", "a b", "[d]\n"},
		"children apart":            {"[a.b]\ny = 1\n[c]\n[a]\nx = 1\n", "a", "[c]\n"},
		"a table of dotted keys":    {"[p]\na.x = 1\nz = 1\na.y = 2\n", "p a", "[p]\nz = 1\n"},
		"the first of an inline":    {"a = { x = 1, y = 2 }\n", "a x", "a = { y = 2 }\n"},
		"the last of an inline":     {"a = { y = 2, x = { z = 1 } }\n", "a x", "a = { y = 2 }\n"},
		"the only one of an inline": {"b = 1\na = {x = 1}\n", "a x", "b = 1\n"},
		"an inline table":           {"[p]\na = {x = 1}\nb = 1\n", "p a", "[p]\nb = 1\n"},
		"an empty table":            {"[p]\nx = 1\n[p.a]\n[b]\n", "p a", "[p]\nx = 1\n[b]\n"},
		"tables of an array below":  {"[a]\nx = 1\n[[a.l]]\ny = 1\n[b]\n", "a", "[b]\n"},
		"CRLF":                      {"[a]\r\nx = 1\r\ny = 1\r\n", "a x", "[a]\r\ny = 1\r\n"},
		"the last line":             {"[a]\ny = 1\nx = 1", "a x", "[a]\ny = 1\n"},
		"a list on many lines":      {"x = [\n 'a',\n 'b',\n]\ny = 1\n", "x", "y = 1\n"},
		"a section of a template":   {"{{ template \"base\" . }}\n\n[a]\n  x = 1\n", "a", "{{ template \"base\" . }}\n"},
		"a line among actions": {"[a]\n{{- if .X }}\nc = {{ .C }}\n{{ end }}\nx = 1\n", "a x",
			"[a]\n{{- if .X }}\nc = {{ .C }}\n{{ end }}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Delete([]byte(test.before), strings.Fields(test.path)...)
			if diff := cmp.Diff(test.after, string(got)); diff != "" || err != nil {
				t.Errorf("Delete: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	for before, want := range map[string]string{
		"i = ['x', 'old']\n": "i = ['x']\n", "i = ['old', 'x'] # why\n": "i = ['x'] # why\n", "v = 1\ni = ['old']\n": "v = 1\n",
		"i = [\n  'x',\n  'old',\n]\n": "i = [\n  'x',\n]\n", "i = ['x']\n": "i = ['x']\n", "v = 1\n": "v = 1\n",
	} {
		got, err := Remove([]byte(before), "old", "i")
		if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
			t.Errorf("Remove from %q: %v (-want +got):\n%s", before, err, diff)
		}
	}
}

// A block of any document can be removed again by its tables: the values are those of before.
func TestDeleteInRandomDocuments(t *testing.T) {
	random := chance.New(t)
	deleted := 0
	for range 3000 {
		text := randomDocument(random)
		before, err := Parse(text)
		path := []string{"plugins", "nri", "ours"}[:2+random.IntN(2)]
		if _, exists := Lookup(before, path...); err != nil || exists {
			continue // a table written twice
		}
		ours := map[string]any{}
		Put(ours, map[string]any{"a": "b", "c": map[string]any{"d": true}}, path...)
		lines, err := Tables(ours)
		if err != nil {
			t.Fatal(err)
		}
		after := WithBlock(text, lines)
		if _, err := Parse(after); err != nil {
			continue // such as a value where a table is needed
		}
		got, err := Delete(after, path...)
		if err != nil {
			t.Fatalf("%v\n%s", err, after)
		}
		deleted++
		tree, err := Parse(got)
		if err != nil || Difference(before, tree) != nil {
			t.Fatalf("%v: %q differs:\n%s\n---\n%s", err, Difference(before, tree), text, got)
		}
	}
	if deleted < 300 {
		t.Errorf("%d values deleted, want more", deleted)
	}
}

func TestDifference(t *testing.T) {
	for want, pair := range map[string][2]string{
		"": {"a = 1\n[b]\n[c.d]\nx = nan\n", "a = 1\n[c.d]\nx = nan\n"}, "a": {"a = 1", "a = '1'"}, "b.c": {"b.c = []", ""},
		"x.y": {"x.y = {}", "x.y = 1"},
	} {
		a, errA := Parse([]byte(pair[0]))
		b, errB := Parse([]byte(pair[1]))
		if got := strings.Join(Difference(a, b), "."); got != want || errA != nil || errB != nil {
			t.Errorf("%q: %q, want %q; %v, %v", pair, got, want, errA, errB)
		}
	}
}
