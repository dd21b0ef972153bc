// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Key is a value of a TOML file that a feature sets: a plan says which, and the ledger adds what was there before.
type Key struct {
	Feature string   `json:"feature"`
	Path    []string `json:"path"`
	Element string   `json:"element,omitempty"` // of the list at the path: the rest of it is not the feature's
	// Own says that a table is the feature's, whatever others add to it. Another new table is there for those beside it,
	// as containerd's own handlers are in a file that has any, and stays while others are.
	Own    bool `json:"own,omitempty"`
	Before any  `json:"before,omitempty"` // nil where there was no value
	After  any  `json:"after,omitempty"`
	Depth  int  `json:"depth"` // how many elements of the path were there before
}

// sameAs reports whether two keys set the same value.
func (k Key) sameAs(other Key) bool {
	return slices.Equal(k.Path, other.Path) && k.Element == other.Element
}

// since returns a key with what a document has in its place.
func (k Key) since(document map[string]any) Key {
	k.Before, k.Depth = nil, 0
	for n := range k.Path {
		if value, exists := tomledit.Lookup(document, k.Path[:n+1]...); exists {
			k.Before, k.Depth = nil, n+1
			if n+1 == len(k.Path) {
				k.Before = value
			}
		}
	}
	return k
}

// goes reports whether a value in a key's place is the feature's, and none that somebody else has set since.
func (k Key) goes(now any) bool { return k.Own || tomledit.Same(now, k.After) }

// needed reports whether tables stay in a document beside that of a key, which is one of those that go.
func (k Key) needed(document map[string]any, going []Key) bool {
	if _, isTable := k.After.(map[string]any); !isTable || k.Own {
		return false
	}
	in := k.Path[:len(k.Path)-1]
	value, _ := tomledit.Lookup(document, in...)
	table, _ := value.(map[string]any)
	for name, value := range table {
		path := append(slices.Clone(in), name)
		if !slices.ContainsFunc(going, func(other Key) bool {
			return slices.Equal(other.Path, path) && other.goes(value)
		}) {
			return true
		}
	}
	return false
}

// without returns a document without the values of keys: with those of before, where there were any. A value that
// somebody else has set since, or that is needed, stays. Tables that were not there before go where nothing is left in
// them.
func without(text []byte, keys []Key) ([]byte, error) {
	for _, k := range slices.Backward(keys) {
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, err
		}
		now, exists := tomledit.Lookup(tree, k.Path...)
		switch {
		case !exists:
			continue
		case k.Element != "":
			if list, _ := k.Before.([]any); slices.Contains(list, any(k.Element)) {
				continue
			}
			if text, err = tomledit.Remove(text, k.Element, k.Path...); err != nil {
				return nil, err
			}
		case !k.goes(now), k.needed(tree, keys):
			continue
		default:
			if table, isTable := k.Before.(map[string]any); k.Before == nil || isTable && len(table) > 0 {
				text, err = tomledit.Delete(text, k.Path...)
			}
			if err == nil && k.Before != nil {
				text, err = tomledit.Set(text, k.Before, k.Path...)
			}
			if err != nil {
				return nil, err
			}
		}
		for n := len(k.Path); n > k.Depth; n-- {
			if tree, err = tomledit.Parse(text); err != nil {
				return nil, err
			}
			if value, exists := tomledit.Lookup(tree, k.Path[:n]...); exists && !isEmpty(value) {
				break
			}
			if text, err = tomledit.Delete(text, k.Path[:n]...); err != nil {
				return nil, err
			}
		}
	}
	return text, nil
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
	if delete(tree, "version"); err == nil && len(tree) == 0 {
		return nil
	}
	return text
}
