// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Part is what a feature has added to a TOML file that others write, too: a table of the file's block, or an element of
// a list. It is found again by its path, also where another tool has written the file anew.
type Part struct {
	Feature string   `json:"feature"`
	Path    []string `json:"path"`
	// Element is one of the list at the path: the rest of it is not the feature's. Inserted is how it was written, with
	// all that came with it, so that the bytes of before come back.
	Element  string `json:"element,omitempty"`
	Inserted string `json:"inserted,omitempty"`
	// Own says that a table is the feature's, whatever others add to it. Another one is there for those beside it, as
	// containerd's own handlers are in a file that has any: it stays while others are, and where others have changed it
	// since.
	Own     bool `json:"own,omitempty"`
	Written any  `json:"written,omitempty"` // of a table that is not the feature's own
	Depth   int  `json:"depth"`             // how many elements of the path were there before
}

// SameAs reports whether two parts are the same place of a file.
func (p Part) SameAs(other Part) bool {
	return slices.Equal(p.Path, other.Path) && p.Element == other.Element
}

// Since returns a part with how much of its path a document has.
func (p Part) Since(document map[string]any) Part {
	p.Depth = 0
	for n := range p.Path {
		if _, exists := tomledit.Lookup(document, p.Path[:n+1]...); exists {
			p.Depth = n + 1
		}
	}
	return p
}

// goes reports whether what is in a part's place is the feature's, and none that somebody else has set since.
func (p Part) goes(now any) bool { return p.Own || tomledit.Same(now, p.Written) }

// Companion reports whether a part is a table that is there for those beside it.
func (p Part) Companion() bool {
	_, isTable := p.Written.(map[string]any)
	return isTable && !p.Own
}

// needed reports whether tables stay in a document beside that of a part, which is one of those that go.
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
			return slices.Equal(other.Path, path) && other.goes(value)
		}) {
			return true
		}
	}
	return false
}

// WithoutParts returns a document without parts. What somebody else has set since, or what is needed, stays. Tables
// that were not there before go where nothing is left in them, and so does a block.
func WithoutParts(text []byte, parts []Part) ([]byte, error) {
	for _, p := range slices.Backward(parts) {
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, err
		}
		now, exists := tomledit.Lookup(tree, p.Path...)
		switch {
		case !exists:
			continue
		case p.Element != "":
			text, err = withoutElement(text, p)
		case !p.goes(now), p.needed(tree, parts):
			continue
		default:
			text, err = tomledit.Delete(text, p.Path...)
		}
		if err != nil {
			return nil, err
		}
		for n := len(p.Path); n > p.Depth; n-- {
			if tree, err = tomledit.Parse(text); err != nil {
				return nil, err
			}
			if value, exists := tomledit.Lookup(tree, p.Path[:n]...); exists && !isEmpty(value) {
				break
			}
			if text, err = tomledit.Delete(text, p.Path[:n]...); err != nil {
				return nil, err
			}
		}
	}
	return withoutEmptyBlock(text)
}

// withoutElement returns a document without an element of a list: with the bytes of before where it is written as it
// was inserted.
func withoutElement(text []byte, p Part) ([]byte, error) {
	byValue, err := tomledit.Remove(text, p.Element, p.Path[0])
	if err != nil || p.Inserted == "" || bytes.Count(text, []byte(p.Inserted)) != 1 {
		return byValue, err
	}
	exact := bytes.Replace(text, []byte(p.Inserted), nil, 1)
	want, _ := tomledit.Parse(byValue) // it was parsed
	if list, _ := tomledit.Lookup(want, p.Path...); p.Depth == 0 && isEmpty(list) {
		delete(want, p.Path[0])
	}
	if got, err := tomledit.Parse(exact); err != nil || tomledit.Difference(got, want) != nil {
		return byValue, nil // something else is written in the same way
	}
	return exact, nil
}

// withoutEmptyBlock returns a document without its block where that says no more than a version. What others say in the
// document keeps that.
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

// isEmpty reports whether a value is a table or a list with nothing in it.
func isEmpty(value any) bool {
	table, isTable := value.(map[string]any)
	list, isList := value.([]any)
	return isTable && len(table) == 0 || isList && len(list) == 0
}

// orNone returns a document, nil where it has no more than a version: nothing is lost with that.
func orNone(text []byte) []byte {
	tree, err := tomledit.Parse(text)
	delete(tree, "version")
	if err == nil && len(tree) == 0 {
		return nil
	}
	return text
}
