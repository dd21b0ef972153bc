// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import "strings"

// words finds which of many words a line has, in one pass over it, whatever their number: a table of four bytes tells
// most positions apart from all words.
type words struct {
	seen  [1 << 16 / 64]uint64 // by hash
	known map[uint32][]word
}

// word is one of them, in small letters, and what it stands for.
type word struct {
	text string
	id   int
}

// add adds a word of four bytes at least.
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

// find calls found with what each word in a line in small letters stands for.
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

// phrase is what a program prints: the fixed parts of a text, in order.
type phrase []string

// phraseOf returns the parts of a text in which "..." stands for anything, in small letters.
func phraseOf(says string) (parts phrase) {
	for part := range strings.SplitSeq(strings.ToLower(says), "...") {
		part = strings.TrimSpace(part)
		if part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// longest is the part that the fewest lines have.
func (p phrase) longest() string {
	longest := p[0]
	for _, part := range p {
		if len(part) > len(longest) {
			longest = part
		}
	}
	return longest
}

// isIn reports whether a line in small letters has all parts, one after another.
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

// size is how much of a line the phrase fixes: what fixes more is the better reading.
func (p phrase) size() (size int) {
	for _, part := range p {
		size += len(part)
	}
	return size
}
