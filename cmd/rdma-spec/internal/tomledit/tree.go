// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package tomledit

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Lookup returns the value at a path, and whether there is one.
func Lookup(tree map[string]any, path ...string) (any, bool) {
	var value any = tree
	for _, key := range path {
		table, isTable := value.(map[string]any)
		if !isTable {
			return nil, false
		}
		value, isTable = table[key]
		if !isTable {
			return nil, false
		}
	}
	return value, true
}

// Difference returns the first path in which the values of two trees differ, nil where they are the same. A table
// without values is the same as none.
func Difference(a, b map[string]any) []string {
	if all := Differences(a, b); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Differences returns all paths in which the values of two trees differ, in their order.
func Differences(a, b map[string]any) (all [][]string) {
	left := Leaves(a)
	right := Leaves(b)
	paths := slices.Concat(slices.Collect(maps.Keys(left)), slices.Collect(maps.Keys(right)))
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		x := left[path]
		y := right[path]
		if !Same(x, y) && (!isEmpty(x) || !isEmpty(y)) {
			all = append(all, strings.Split(path, "\x00"))
		}
	}
	return all
}

// isEmpty reports whether a leaf is a table without values, or is not there.
func isEmpty(leaf any) bool {
	table, isTable := leaf.(map[string]any)
	return leaf == nil || isTable && len(table) == 0
}

// Clone returns a tree whose tables can be changed.
func Clone(tree map[string]any) map[string]any {
	copied := make(map[string]any, len(tree))
	for key, value := range tree {
		if table, isTable := value.(map[string]any); isTable {
			value = Clone(table)
		}
		copied[key] = value
	}
	return copied
}

// Leaves returns the values of a tree that are no tables, or empty ones, by their paths, whose keys a NUL separates.
func Leaves(tree map[string]any) map[string]any {
	all := map[string]any{}
	for key, value := range tree {
		table, isTable := value.(map[string]any)
		for path, leaf := range Leaves(table) {
			all[key+"\x00"+path] = leaf
		}
		if !isTable || len(table) == 0 {
			all[key] = value
		}
	}
	return all
}

// Put sets a value of a tree.
func Put(tree map[string]any, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, isTable := tree[key].(map[string]any)
		if !isTable {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	tree[path[len(path)-1]] = value
}

// Same compares values as TOML writes them: nan is the same as nan, and an int the same as an int64.
func Same(a, b any) bool {
	textA, errA := toml.Marshal(map[string]any{"": a})
	textB, errB := toml.Marshal(map[string]any{"": b})
	return errA == nil && errB == nil && bytes.Equal(textA, textB)
}
