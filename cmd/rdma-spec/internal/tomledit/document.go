// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package tomledit

import (
	"bytes"
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"
)

// document contains the positions of a text's sections and keys. Positions are byte offsets.
type document struct {
	text     []byte
	tree     map[string]any
	sections []section // the first section has no header: it precedes all headers
	keys     []keyValue
}

// section is a header with its keys.
type section struct {
	path  []string
	array bool // an array of tables
	start int  // the start of the header
	end   int  // the end of the header or of the last key, without white space and comments
}

// keyValue is a key and its value, possibly in an inline table.
type keyValue struct {
	path       []string // from the top of the document
	section    int
	start, end int
	value      int    // the start of the value
	elements   []span // the elements of a list
	inline     bool
}

// span is a part of a text.
type span struct{ start, end int }

func scan(text []byte) (*document, error) {
	tree, err := Parse(text)
	if err != nil {
		return nil, err
	}
	d := &document{text: text, tree: tree, sections: []section{{}}}
	var p unstable.Parser
	p.Reset(readable(text))
	for p.NextExpression() {
		node := p.Expression()
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, first, last := keys(node.Key())
			s := section{path: path, array: node.Kind == unstable.ArrayTable, end: last}
			s.start = bytes.LastIndexByte(text[:first], '[')
			closing := "]"
			if s.array {
				s.start--
				closing = "]]"
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

// add adds a key. If the value is an inline table, add also adds its keys.
func (d *document) add(node *unstable.Node, below []string, section int, inline bool) {
	path, _, last := keys(node.Key())
	kv := keyValue{path: slices.Concat(below, path), section: section, start: int(node.Raw.Offset), end: end(node),
		inline: inline}
	kv.value = last + bytes.IndexByte(d.text[last:], '=') + 1
	for d.text[kv.value] == ' ' || d.text[kv.value] == '\t' {
		kv.value++
	}
	value := node.Value()
	isTable := value.Kind == unstable.InlineTable
	if value.Kind == unstable.Array || isTable {
		for children := value.Children(); children.Next(); {
			child := children.Node()
			kv.elements = append(kv.elements, span{int(child.Raw.Offset), end(child)})
			if isTable {
				d.add(child, kv.path, section, true)
			}
		}
	}
	d.keys = append(d.keys, kv)
}

// keys returns a dotted key with its start and end.
func keys(dotted unstable.Iterator) (path []string, first, last int) {
	for dotted.Next() {
		key := dotted.Node()
		if path == nil {
			first = int(key.Raw.Offset)
		}
		path = append(path, string(key.Data))
		last = end(key)
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

// insertOnTop adds a key above all headers, and above the comment of the first header.
func (d *document) insertOnTop(line string) []byte {
	if end := d.sections[0].end; end > 0 {
		rest := bytes.IndexByte(d.text[end:], '\n')
		if rest < 0 {
			return slices.Concat(d.text, []byte(d.newline()+line))
		}
		return splice(d.text, end+rest+1, end+rest+1, line+d.newline())
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

// remove returns the text without the value at a path. It removes whole sections, lines, and elements of inline tables.
func (d *document) remove(path []string) []byte {
	at := func(other []string) bool { return slices.Equal(other, path) || below(other, path) }
	var gone []span
	for _, s := range d.sections[1:] {
		if at(s.path) {
			gone = append(gone, d.lines(span{s.start, s.end}))
		}
	}
	inGone := func(position int) bool {
		return slices.ContainsFunc(gone, func(s span) bool { return s.start <= position && position < s.end })
	}
	for _, kv := range slices.Backward(d.keys) { // an inline table follows its keys
		switch {
		case !at(kv.path) || inGone(kv.start):
		case kv.inline:
			gone = append(gone, d.element(span{kv.start, kv.end}))
		default:
			gone = append(gone, d.lines(span{kv.start, kv.end}))
		}
	}
	slices.SortFunc(gone, func(a, b span) int { return b.start - a.start })
	text := d.text
	for _, s := range gone {
		text = splice(text, s.start, s.end, "")
	}
	return text
}

// lines returns the whole lines of a span. It includes a blank line above if a blank line or nothing follows.
func (d *document) lines(s span) span {
	s.start = d.lineStart(s.start)
	if rest := bytes.IndexByte(d.text[s.end:], '\n'); rest < 0 {
		s.end = len(d.text)
	} else {
		s.end += rest + 1
	}
	blank := func(from int) bool {
		line, _, _ := bytes.Cut(d.text[from:], []byte("\n"))
		return len(bytes.TrimSpace(line)) == 0
	}
	if s.start > 0 {
		if above := d.lineStart(s.start - 1); blank(above) && blank(s.end) {
			s.start = above
		}
	}
	return s
}

// element returns the span of an element of a list or of an inline table, with one of its commas.
func (d *document) element(s span) span {
	rest := d.text[s.end:]
	if spaces := len(rest) - len(bytes.TrimLeft(rest, " \t\r\n")); bytes.HasPrefix(rest[spaces:], []byte(",")) {
		s.end += spaces + 1
		for s.end < len(d.text) && d.text[s.end] == ' ' {
			s.end++
		}
		if line := d.lineStart(s.start); d.text[s.end] == '\n' && len(bytes.TrimSpace(d.text[line:s.start])) == 0 {
			return span{line, s.end + 1}
		}
		return s
	}
	if before := bytes.TrimRight(d.text[:s.start], " \t\r\n"); bytes.HasSuffix(before, []byte(",")) {
		s.start = len(before) - 1
	}
	return s
}

func (d *document) lineStart(position int) int {
	start := bytes.LastIndexByte(d.text[:position], '\n') + 1
	if start == 0 && bytes.HasPrefix(d.text, ByteOrderMark) {
		return len(ByteOrderMark)
	}
	return start
}

// newline returns the line ending of the document's first line.
func (d *document) newline() string {
	if i := bytes.IndexByte(d.text, '\n'); i > 0 && d.text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// finalNewline returns the newline that the document's last line lacks; "" if it lacks none.
func (d *document) finalNewline() string {
	if len(d.text) == 0 || d.text[len(d.text)-1] == '\n' {
		return ""
	}
	return d.newline()
}
