// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package tomledit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// document is where things are in a text. Positions are offsets in bytes.
type document struct {
	text     []byte
	sections []section // the first has no header: it is what comes before all headers
	keys     []keyValue
}

// section is a header and the keys below it.
type section struct {
	path  []string
	array bool // of an array of tables
	start int  // of the header
	end   int  // of the header, and then of the last key: behind the line's last byte that is not white space or a comment
}

// keyValue is a key and its value, also one in an inline table.
type keyValue struct {
	path        []string // from the top of the document
	section     int
	start, end  int
	value       int // where the value begins
	lastElement int // of a list: where its last element ends
	inline      bool
	isTable     bool // the value is an inline table
}

func scan(text []byte) (*document, error) {
	d := &document{text: text, sections: []section{{}}}
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		node := p.Expression()
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, first, last := keys(node.Key())
			s := section{path: path, array: node.Kind == unstable.ArrayTable, end: last}
			s.start = bytes.LastIndexByte(text[:first], '[')
			closing := "]"
			if s.array {
				s.start, closing = s.start-1, "]]"
			}
			s.end += bytes.Index(text[last:], []byte(closing)) + len(closing)
			d.sections = append(d.sections, s)
		case unstable.KeyValue:
			now := len(d.sections) - 1
			d.add(node, d.sections[now].path, now, false)
			d.sections[now].end = end(node)
		}
	}
	return d, p.Error()
}

// add adds a key, and those in its value if that is an inline table.
func (d *document) add(node *unstable.Node, below []string, section int, inline bool) {
	path, _, last := keys(node.Key())
	kv := keyValue{path: slices.Concat(below, path), section: section, start: int(node.Raw.Offset),
		end: end(node), inline: inline}
	kv.value = last + bytes.IndexByte(d.text[last:], '=') + 1
	for d.text[kv.value] == ' ' || d.text[kv.value] == '\t' {
		kv.value++
	}
	value := node.Value()
	kv.isTable = value.Kind == unstable.InlineTable
	children := value.Children()
	if value.Kind == unstable.Array || kv.isTable {
		for children.Next() {
			child := children.Node()
			kv.lastElement = end(child)
			if kv.isTable {
				d.add(child, kv.path, section, true)
			}
		}
	}
	d.keys = append(d.keys, kv)
}

// keys returns a dotted key, and where it begins and ends.
func keys(dotted unstable.Iterator) (path []string, first, last int) {
	for dotted.Next() {
		key := dotted.Node()
		if path == nil {
			first = int(key.Raw.Offset)
		}
		path, last = append(path, string(key.Data)), end(key)
	}
	return path, first, last
}

func end(node *unstable.Node) int { return int(node.Raw.Offset + node.Raw.Length) }

// find returns the key at a path.
func (d *document) find(path []string) (keyValue, bool) {
	i := slices.IndexFunc(d.keys,
		func(kv keyValue) bool { return slices.Equal(kv.path, path) && !d.sections[kv.section].array })
	if i < 0 {
		return keyValue{}, false
	}
	return d.keys[i], true
}

func below(path, parent []string) bool {
	return len(path) > len(parent) && slices.Equal(path[:len(parent)], parent)
}

// set returns the text with a value set.
func (d *document) set(path []string, value string) ([]byte, error) {
	if kv, exists := d.find(path); exists {
		return splice(d.text, kv.value, kv.end, value), nil
	}
	for n := len(path) - 1; n > 0; n-- {
		if kv, exists := d.find(path[:n]); exists {
			if !kv.isTable {
				return nil, fmt.Errorf("%s is not a table", join(path[:n]))
			}
			return nil, fmt.Errorf("%s is an inline table: put %s = %s into its braces, and try again",
				join(path[:n]), join(path[n:]), value)
		}
	}
	if len(path) == 1 {
		return d.insertOnTop(join(path) + " = " + value), nil
	}
	parent, line := path[:len(path)-1], join(path[len(path)-1:])+" = "+value
	for i, s := range d.sections {
		if i > 0 && !s.array && slices.Equal(s.path, parent) {
			return d.insertBelow(s.end, d.indent(i), line), nil
		}
	}
	for _, kv := range d.keys {
		if s := d.sections[kv.section]; !kv.inline && !s.array && below(kv.path, parent) && len(s.path) < len(parent) {
			return nil, fmt.Errorf("%s is written with dotted keys: put the line %s = %s below the one of %s, and try again",
				join(parent), join(path[len(s.path):]), value, join(kv.path[len(s.path):]))
		}
	}
	return d.appendSection(parent, line), nil
}

// insertOnTop adds a key above all headers, and above the comment of the first one.
func (d *document) insertOnTop(line string) []byte {
	if d.sections[0].end > 0 {
		return d.insertBelow(d.sections[0].end, "", line)
	}
	if len(d.sections) == 1 {
		return slices.Concat(d.text, []byte(d.finalNewline()+line+d.newline()))
	}
	at := d.lineStart(d.sections[1].start)
	for at > 0 {
		above := d.lineStart(at - 1)
		if !bytes.HasPrefix(bytes.TrimLeft(d.text[above:at], " \t"), []byte("#")) {
			break
		}
		at = above
	}
	return splice(d.text, at, at, line+d.newline()+d.newline())
}

// insertBelow adds a line below the line of a position.
func (d *document) insertBelow(position int, indent, line string) []byte {
	rest := bytes.IndexByte(d.text[position:], '\n')
	if rest < 0 {
		return slices.Concat(d.text, []byte(d.newline()+indent+line))
	}
	at := position + rest + 1
	return splice(d.text, at, at, indent+line+d.newline())
}

// appendSection adds a section to the end.
func (d *document) appendSection(path []string, line string) []byte {
	added := d.finalNewline()
	if len(bytes.TrimSpace(d.text)) > 0 {
		added += d.newline()
	}
	added += "[" + join(path) + "]" + d.newline() + "  " + line + d.newline()
	return slices.Concat(d.text, []byte(added))
}

// indent returns the white space before the keys of a section.
func (d *document) indent(section int) string {
	for _, kv := range d.keys {
		if kv.section == section && !kv.inline {
			return d.space(kv.start)
		}
	}
	return d.space(d.sections[section].start) + "  "
}

// space returns the white space before a position of its line.
func (d *document) space(position int) string {
	line := string(d.text[d.lineStart(position):position])
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

func (d *document) lineStart(position int) int {
	return bytes.LastIndexByte(d.text[:position], '\n') + 1
}

// newline returns how the document's first line ends.
func (d *document) newline() string {
	if i := bytes.IndexByte(d.text, '\n'); i > 0 && d.text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// finalNewline returns what a document lacks that does not end its last line.
func (d *document) finalNewline() string {
	if len(d.text) == 0 || d.text[len(d.text)-1] == '\n' {
		return ""
	}
	return d.newline()
}
