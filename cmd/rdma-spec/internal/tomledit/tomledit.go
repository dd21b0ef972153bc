// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tomledit adds lines to a TOML document, and removes them, without changing any other byte: comments, order,
// quotes, and line ends. It does not know what the keys mean.
//
// The parser in github.com/pelletier/go-toml/v2 provides the positions. Each edit is checked: if the parsed document
// differs from the previous one by more than the edited value, the edit fails.
package tomledit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Parse returns the content of a document, or of a template of one.
func Parse(text []byte) (map[string]any, error) {
	tree := map[string]any{}
	if err := toml.Unmarshal(readable(text), &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// What a Go template has that is not TOML: lines of actions, and actions in place of values.
var (
	actionLine  = regexp.MustCompile(`(?m)^[ \t]*\{\{.*$`)
	actionValue = regexp.MustCompile(`(=[ \t]*)(\{\{.*?\}\})`)
)

// ByteOrderMark begins files that some editors write, and that containerd 1.x reads.
var ByteOrderMark = []byte("\xef\xbb\xbf")

// readable returns a document as it is, and a template with its actions as comments and strings of the same length. A
// byte order mark is as long as spaces.
func readable(text []byte) []byte {
	if rest, marked := bytes.CutPrefix(text, ByteOrderMark); marked {
		text = slices.Concat([]byte("   "), rest)
	}
	if !bytes.Contains(text, []byte("{{")) || toml.Unmarshal(text, &map[string]any{}) == nil {
		return text
	}
	text = actionLine.ReplaceAllFunc(text, func(line []byte) []byte {
		return bytes.Repeat([]byte("#"), len(line))
	})
	return actionValue.ReplaceAllFunc(text, func(match []byte) []byte {
		action := bytes.Index(match, []byte("{{"))
		return slices.Concat(match[:action], []byte(`"`), bytes.Repeat([]byte("x"), len(match)-action-2), []byte(`"`))
	})
}

// Set sets the value of a key above all tables: it changes the value where the key exists, and else adds a line. A
// value is a boolean, a number, a string, or a list of those.
func Set(text []byte, value any, key string) ([]byte, error) {
	d, err := scan(text)
	if err != nil {
		return nil, err
	}
	if old, exists := d.tree[key]; exists && Same(old, value) {
		return text, nil
	}
	written, err := write(value)
	if err != nil {
		return nil, err
	}
	var after []byte
	if kv, exists := d.find([]string{key}); exists {
		after = splice(text, kv.value, kv.end, written)
	} else {
		after = d.insertOnTop(join([]string{key}) + " = " + written)
	}
	return d.edited(after, value, key)
}

// Tables writes the tables of a tree with all that is in them. They can stand at the end of a document that has none of
// them.
func Tables(tree map[string]any) ([]byte, error) {
	var b bytes.Buffer
	err := writeTables(&b, nil, tree)
	return b.Bytes(), err
}

func writeTables(b *bytes.Buffer, path []string, table map[string]any) error {
	var lines, tables []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if inner, isTable := table[key].(map[string]any); isTable && len(inner) > 0 {
			tables = append(tables, key)
			continue
		}
		written, err := write(table[key])
		if err != nil {
			return err
		}
		lines = append(lines, "  "+join([]string{key})+" = "+written+"\n")
	}
	if len(lines) > 0 {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "[%s]\n%s", join(path), strings.Join(lines, ""))
	}
	for _, key := range tables {
		inner, _ := table[key].(map[string]any) // it is one
		if err := writeTables(b, append(slices.Clone(path), key), inner); err != nil {
			return err
		}
	}
	return nil
}

// Add adds an element to the end of a list of strings, whose key is above all tables. It adds the list where there is
// none.
func Add(text []byte, element, key string) ([]byte, error) {
	d, err := scan(text)
	if err != nil {
		return nil, err
	}
	old, exists := d.tree[key]
	if !exists {
		return Set(text, []any{element}, key)
	}
	list, isList := old.([]any)
	if !isList {
		return nil, fmt.Errorf("%s is not a list", key)
	}
	kv, found := d.find([]string{key})
	if !found {
		return nil, fmt.Errorf("%s is not written as a list", key)
	}
	written := quote(element)
	at := kv.value + len("[")
	if len(list) > 0 {
		at = kv.elements[len(kv.elements)-1].end
		written = ", " + written
	}
	after := splice(text, at, at, written)
	return d.edited(after, append(slices.Clone(list), any(element)), key)
}

// Remove removes an element of a list of strings, whose key is above all tables, and the list with its last one. The
// text stays where the list has no such element.
func Remove(text []byte, element, key string) ([]byte, error) {
	d, err := scan(text)
	if err != nil {
		return nil, err
	}
	list, _ := d.tree[key].([]any)
	i := slices.Index(list, any(element))
	switch {
	case i < 0:
		return text, nil
	case len(list) == 1:
		return Delete(text, key)
	}
	kv, found := d.find([]string{key})
	if !found {
		return nil, fmt.Errorf("%s is not written as a list", key)
	}
	gone := d.element(kv.elements[i])
	after := splice(text, gone.start, gone.end, "")
	return d.edited(after, slices.Delete(slices.Clone(list), i, i+1), key)
}

// Delete removes the value at a path, wherever it is written: a key, or a table with all that is in it. Tables that
// have nothing else go with it. The text stays where there is none.
func Delete(text []byte, path ...string) ([]byte, error) {
	d, err := scan(text)
	if err != nil {
		return nil, err
	}
	if _, exists := Lookup(d.tree, path...); !exists {
		return text, nil
	}
	for len(path) > 1 {
		parent, _ := Lookup(d.tree, path[:len(path)-1]...)
		if len(parent.(map[string]any)) > 1 { // it has the key
			break
		}
		path = path[:len(path)-1]
	}
	return d.edited(d.remove(path), nil, path...)
}

// edited returns a text that has another value at a path than the document, nil for none. It is an error if more has
// changed, or less.
func (d *document) edited(after []byte, value any, path ...string) ([]byte, error) {
	got, err := Parse(after)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be changed: %w", join(path), err)
	}
	want := Clone(d.tree)
	Put(want, value, path...)
	if Difference(got, want) != nil {
		return nil, fmt.Errorf("%s cannot be changed without also changing other keys", join(path))
	}
	return after, nil
}

// write writes a value on one line.
func write(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return quote(v), nil
	case []any:
		elements := make([]string, 0, len(v))
		for _, element := range v {
			written, err := write(element)
			if err != nil {
				return "", err
			}
			elements = append(elements, written)
		}
		return "[" + strings.Join(elements, ", ") + "]", nil
	case map[string]any:
		if len(v) == 0 {
			return "{}", nil
		}
	}
	text, err := toml.Marshal(map[string]any{"v": value})
	if line, found := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), "v = "); err == nil && found &&
		!strings.Contains(line, "\n") {
		return line, nil
	}
	return "", fmt.Errorf("a value of type %T cannot be written on one line", value)
}

// quote writes a string as JSON does, which TOML reads but for one character.
func quote(s string) string {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	_ = to.Encode(s) // a string has no other errors than those of b, which has none
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007F`)
}

// join writes a path as a dotted key.
func join(path []string) string {
	var keys []string
	for _, key := range path {
		if key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			key = quote(key)
		}
		keys = append(keys, key)
	}
	return strings.Join(keys, ".")
}

// splice returns a text with something else in a place: an empty one is not none.
func splice(text []byte, from, to int, with string) []byte {
	return append([]byte{}, slices.Concat(text[:from], []byte(with), text[to:])...)
}
