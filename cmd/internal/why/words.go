// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import "strings"

// words finds the words in a line in one pass, regardless of the number of words. A table of hashes of four bytes rules
// out most positions.
type words struct {
	seen  [1 << 16 / 64]uint64 // by hash
	known map[uint32][]word
}

// word is a lowercase word with its ID.
type word struct {
	text string
	id   int
}

// add adds a word of at least four bytes.
func (w *words) add(text string, id int) {
	if w.known == nil {
		w.known = map[uint32][]word{}
	}
	text = strings.ToLower(text)
	head := uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24
	w.known[head] = append(w.known[head], word{text, id})
	h := hash(head)
	w.seen[h/64] |= 1 << (h % 64)
}

func hash(head uint32) uint32 { return head * 2654435761 >> 16 }

// find calls found with the ID of each word in a lowercase line.
func (w *words) find(line []byte, found func(id int)) {
	if len(line) < 4 {
		return
	}
	head := uint32(line[0])<<8 | uint32(line[1])<<16 | uint32(line[2])<<24
	for i := 3; i < len(line); i++ {
		head = head>>8 | uint32(line[i])<<24
		h := hash(head)
		if w.seen[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		rest := line[i-3:]
		for _, known := range w.known[head] {
			if len(rest) >= len(known.text) && string(rest[:len(known.text)]) == known.text {
				found(known.id)
			}
		}
	}
}

// phrase is the fixed parts of a program's message, in order.
type phrase []string

// phraseOf returns the fixed parts of a message in lowercase. "..." in the message stands for any text.
func phraseOf(says string) (parts phrase) {
	for part := range strings.SplitSeq(strings.ToLower(says), "...") {
		part = strings.TrimSpace(part)
		if part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// longest returns the longest part, which occurs in the fewest lines.
func (p phrase) longest() string {
	longest := p[0]
	for _, part := range p {
		if len(part) > len(longest) {
			longest = part
		}
	}
	return longest
}

// isIn reports whether a lowercase line contains all parts in order.
func (p phrase) isIn(line string) bool {
	for _, part := range p {
		_, after, found := strings.Cut(line, part)
		if !found {
			return false
		}
		line = after
	}
	return true
}

// size returns the number of bytes that the phrase fixes. A phrase that fixes more bytes is the better reading.
func (p phrase) size() (size int) {
	for _, part := range p {
		size += len(part)
	}
	return size
}
