// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tomledit adds lines to a TOML document, and removes lines. All other bytes stay unchanged, including
// comments, order, quotes, and line endings. The package does not interpret the keys.
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

// Parse returns the content of a document, or of a template for a document.
func Parse(text []byte) (map[string]any, error) {
	tree := map[string]any{}
	if err := toml.Unmarshal(readable(text), &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// The parts of a Go template that are not TOML: lines with actions, and actions in place of values.
var (
	actionLine  = regexp.MustCompile(`(?m)^[ \t]*\{\{.*$`)
	actionValue = regexp.MustCompile(`(=[ \t]*)(\{\{.*?\}\})`)
)

// ByteOrderMark is the first character in files of some editors. containerd 1.x accepts such files.
var ByteOrderMark = []byte("\xef\xbb\xbf")

// readable returns a document unchanged. In a template, it replaces actions with comments and strings of the same
// length. It replaces a byte order mark with spaces.
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

// Set sets the value of a key above all tables. If the key exists, Set changes its value. Otherwise, Set adds a line. A
// value is a boolean, a number, a string, or a list of such values.
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

// Tables writes the tables of a tree with their content. The result can be appended to a document that has none of
// these tables.
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
		inner, _ := table[key].(map[string]any) // always a table
		if err := writeTables(b, append(slices.Clone(path), key), inner); err != nil {
			return err
		}
	}
	return nil
}

// Add adds an element to the end of a list of strings whose key is above all tables. If the list does not exist, Add
// adds the list.
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

// Remove removes an element from a list of strings whose key is above all tables. With the last element, it removes the
// list. If the list does not contain the element, the text stays unchanged.
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

// Delete removes the value at a path: a key, or a table with its content. It also removes parent tables that become
// empty. If the value does not exist, the text stays unchanged.
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

// edited checks a changed text. Except for the new value at the path, or nil for no value, the text must equal the
// document.
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

// quote writes a string as JSON. TOML accepts JSON strings, except for one character.
func quote(s string) string {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	_ = to.Encode(s) // never fails for a string and a buffer
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

// splice replaces a span of a text. The result is never nil.
func splice(text []byte, from, to int, with string) []byte {
	return append([]byte{}, slices.Concat(text[:from], []byte(with), text[to:])...)
}
