// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Part is what a feature has added to a TOML file that others write, too: a table or value of the file's block, or an
// element of its imports. It is found again by its path, also where another tool has written the file anew.
type Part struct {
	Feature string   `json:"feature,omitempty"` // empty for a companion
	Path    []string `json:"path"`
	// Element is one of the list at the path: the rest of it is not the feature's. Inserted is how it was written, with
	// all that came with it, so that the bytes of before come back.
	Element  string `json:"element,omitempty"`
	Inserted string `json:"inserted,omitempty"`
	// Written is what goes only as it was written. Without it, a table goes whatever others have made of it.
	Written any `json:"written,omitempty"`
}

// SameAs reports whether two parts are the same place of a file.
func (p Part) SameAs(other Part) bool {
	return slices.Equal(p.Path, other.Path) && p.Element == other.Element
}

// isOurs reports whether what is in a part's place is ours, and none that somebody else has set since.
func (p Part) isOurs(now any) bool { return p.Written == nil || tomledit.Same(now, p.Written) }

// Companion reports whether a part is a table that is there for those beside it, whosever they are, as containerd's own
// handlers are in a file that has any. It goes with the last one.
func (p Part) Companion() bool { return p.Feature == "" }

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
			return slices.Equal(other.Path, path) && other.isOurs(value)
		}) {
			return true
		}
	}
	return false
}

// withoutParts returns a document without parts. What somebody else has set since, or what is needed, stays. A block
// goes where nothing is left in it.
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

// removePart returns a document without a table or value: that of its block, so that no other byte changes, or else
// that which a tool has taken out of the block with the lines around it. A companion of a block is in no other place.
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

// withoutElement returns a document without an element of a list, and without one that is empty then: with the bytes of
// before where the element is written as it was inserted.
func withoutElement(text []byte, p Part) ([]byte, error) {
	byValue, err := tomledit.Remove(text, p.Element, p.Path[0])
	if err != nil || p.Inserted == "" || bytes.Count(text, []byte(p.Inserted)) != 1 {
		return byValue, err
	}
	exact := bytes.Replace(text, []byte(p.Inserted), nil, 1)
	want, _ := tomledit.Parse(byValue) // it was parsed
	got, err := tomledit.Parse(exact)
	if list, isList := got[p.Path[0]].([]any); isList && len(list) == 0 { // as it was before
		delete(got, p.Path[0])
	}
	if err != nil || tomledit.Difference(got, want) != nil {
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

// orNone returns a document, nil where it has no more than a version: nothing is lost with that.
func orNone(text []byte) []byte {
	tree, err := tomledit.Parse(text)
	delete(tree, "version")
	if err == nil && len(tree) == 0 {
		return nil
	}
	return text
}
