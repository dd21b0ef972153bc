// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package tomledit

import (
	"bytes"
	"slices"
)

// The lines around a block. If the file's last line had no newline, the first line says so. In this case, the added
// newline is removed together with the block.
const (
	blockBegin = "# rdma-spec configure wrote the following lines"
	blockBelow = ", below a line that had no newline at its end"
	blockEnd   = "# to here; rdma-spec configure --revert removes them."
)

// block is the position of a block in a text, with and without the block's first and last line.
type block struct {
	outer, inner span
	below        bool // the line above had no newline
}

// findBlock returns the block of a text. It ignores white space around lines, as for a template.
func findBlock(text []byte) (b block, found bool) {
	b.outer.start = -1
	at := 0
	for line := range bytes.Lines(text) {
		next := at + len(line)
		switch said := string(bytes.TrimSpace(bytes.TrimPrefix(line, ByteOrderMark))); {
		case said == blockBegin || said == blockBegin+blockBelow:
			b.outer.start = at
			b.inner.start = next
			b.below = said != blockBegin
			if bytes.HasPrefix(line, ByteOrderMark) {
				b.outer.start += len(ByteOrderMark)
			}
		case said == blockEnd && b.outer.start >= 0:
			b.inner.end = at
			b.outer.end = next
			return b, true
		}
		at = next
	}
	return block{}, false
}

// Block returns the lines in the block of a text, which rdma-spec configure has added to another program's file; nil if
// the text has no block.
func Block(text []byte) []byte {
	b, found := findBlock(text)
	if !found {
		return nil
	}
	lines := bytes.ReplaceAll(text[b.inner.start:b.inner.end], []byte("\r\n"), []byte("\n"))
	return append([]byte{}, lines...) // not nil for an empty block
}

// WithBlock returns a text with other lines in its block, or with a new block at its end.
func WithBlock(text, lines []byte) []byte {
	d := document{text: text}
	lines = bytes.ReplaceAll(lines, []byte("\n"), []byte(d.newline()))
	if b, found := findBlock(text); found {
		return splice(text, b.inner.start, b.inner.end, string(lines))
	}
	begin := blockBegin
	missing := d.finalNewline()
	if bytes.Equal(text, ByteOrderMark) {
		missing = ""
	}
	if missing != "" {
		begin += blockBelow
	}
	return slices.Concat(text, []byte(missing+begin+d.newline()), lines, []byte(blockEnd+d.newline()))
}

// WithoutBlock returns a text without its block. It reverses WithBlock.
func WithoutBlock(text []byte) []byte {
	b, found := findBlock(text)
	if !found {
		return text
	}
	if b.below && b.outer.end == len(text) {
		d := document{text: text[b.outer.start:]} // the text above can end in a carriage return
		return slices.Clone(bytes.TrimSuffix(text[:b.outer.start], []byte(d.newline())))
	}
	return splice(text, b.outer.start, b.outer.end, "")
}

// WithoutMarks returns a text with the lines in its block, but without the block's first and last line.
func WithoutMarks(text []byte) []byte {
	b, found := findBlock(text)
	if !found {
		return text
	}
	return slices.Concat(text[:b.outer.start], text[b.inner.start:b.inner.end], text[b.outer.end:])
}
