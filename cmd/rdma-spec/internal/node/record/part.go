// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Part is a feature's addition to a TOML file that other programs also write: a table or value in the file's block, or
// an element of its imports. A part is found by its path, even if another tool has rewritten the file.
type Part struct {
	Feature string   `json:"feature,omitempty"` // empty for a companion
	Path    []string `json:"path"`
	// Element is an element of the list at the path. The rest of the list does not belong to the feature. Inserted is the
	// exact text that was inserted, so that its removal restores the original bytes.
	Element  string `json:"element,omitempty"`
	Inserted string `json:"inserted,omitempty"`
	// Written is the value that was written. The part is removed only if its value is still Written. If Written is nil, a
	// table is removed even if other programs have changed it.
	Written any `json:"written,omitempty"`
}

// SameAs reports whether two parts refer to the same place in a file.
func (p Part) SameAs(other Part) bool {
	return slices.Equal(p.Path, other.Path) && p.Element == other.Element
}

// isOurs reports whether the current value of a part is the one that rdma-spec wrote.
func (p Part) isOurs(now any) bool { return p.Written == nil || tomledit.Same(now, p.Written) }

// Companion reports whether a part is a table that exists only because of its sibling tables, of any origin. For
// example, a file with handlers must also contain containerd's own handlers. A companion is removed with its last
// sibling.
func (p Part) Companion() bool { return p.Feature == "" }

// needed reports whether siblings of a companion stay in the document after the parts in going are removed.
func (p Part) needed(document map[string]any, going []Part) bool {
	if !p.Companion() {
		return false
	}
	in := p.Path[:len(p.Path)-1]
	value, _ := tomledit.Lookup(document, in...)
	table, _ := value.(map[string]any)
	for name, value := range table {
		path := append(slices.Clone(in), name)
		if !slices.ContainsFunc(going, func(other Part) bool {
			return slices.Equal(other.Path, path) && other.isOurs(value)
		}) {
			return true
		}
	}
	return false
}

// withoutParts returns a document without parts. Parts that others have changed, and needed companions, stay. An empty
// block is removed.
func withoutParts(text []byte, parts []Part) ([]byte, error) {
	for _, p := range slices.Backward(parts) {
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, err
		}
		now, exists := tomledit.Lookup(tree, p.Path...)
		switch {
		case !exists:
		case p.Element != "":
			text, err = withoutElement(text, p)
		case p.isOurs(now) && !p.needed(tree, parts):
			text, err = removePart(text, p)
		}
		if err != nil {
			return nil, err
		}
	}
	return withoutEmptyBlock(text)
}

// removePart returns a document without a table or value. It removes the part from the block, so that no other byte
// changes. If another tool has removed the block's marks, it removes the part from the document. A companion exists
// only in the block.
func removePart(text []byte, p Part) ([]byte, error) {
	block := tomledit.Block(text)
	tree, err := tomledit.Parse(block)
	if err != nil {
		return nil, err
	}
	if _, has := tomledit.Lookup(tree, p.Path...); has {
		rest, err := tomledit.Delete(block, p.Path...)
		return tomledit.WithBlock(text, rest), err
	}
	if block != nil && p.Companion() {
		return text, nil
	}
	return tomledit.Delete(text, p.Path...)
}

// withoutElement returns a document without an element of a list, and without the list if it becomes empty. If the
// inserted text is unchanged, the result has the original bytes.
func withoutElement(text []byte, p Part) ([]byte, error) {
	byValue, err := tomledit.Remove(text, p.Element, p.Path[0])
	if err != nil || p.Inserted == "" || bytes.Count(text, []byte(p.Inserted)) != 1 {
		return byValue, err
	}
	exact := bytes.Replace(text, []byte(p.Inserted), nil, 1)
	want, _ := tomledit.Parse(byValue) // already parsed
	got, err := tomledit.Parse(exact)
	if list, isList := got[p.Path[0]].([]any); isList && len(list) == 0 { // as it was before
		delete(got, p.Path[0])
	}
	if err != nil || tomledit.Difference(got, want) != nil {
		return byValue, nil // another part of the document has the same text
	}
	return exact, nil
}

// withoutEmptyBlock returns a document without its block if the block contains at most a version. If the rest of the
// document has content, the version stays.
func withoutEmptyBlock(text []byte) ([]byte, error) {
	block := tomledit.Block(text)
	if block == nil {
		return text, nil
	}
	tree, err := tomledit.Parse(block)
	if err != nil {
		return nil, err
	}
	_, says := tree["version"]
	delete(tree, "version")
	if len(tree) > 0 {
		return text, nil
	}
	rest := tomledit.WithoutBlock(text)
	if others, err := tomledit.Parse(rest); says && (err != nil || len(others) > 0) {
		return tomledit.WithoutMarks(text), nil
	}
	return rest, nil
}

// orNone returns a document, or nil if the document contains at most a version.
func orNone(text []byte) []byte {
	tree, err := tomledit.Parse(text)
	delete(tree, "version")
	if err == nil && len(tree) == 0 {
		return nil
	}
	return text
}
