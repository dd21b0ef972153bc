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

// Lookup returns the value at a path, and whether the value exists.
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

// Difference returns the first path in which the values of two trees differ; nil if the trees are equal. A table
// without values equals a missing table.
func Difference(a, b map[string]any) []string {
	if all := Differences(a, b); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Differences returns all paths in which the values of two trees differ, in sorted order.
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

// isEmpty reports whether a leaf is a table without values, or is missing.
func isEmpty(leaf any) bool {
	table, isTable := leaf.(map[string]any)
	return leaf == nil || isTable && len(table) == 0
}

// Clone returns a copy of a tree. Changes to the copy's tables do not affect the original.
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

// Leaves returns the values of a tree that are not tables, and empty tables, by their paths. The keys of a path are
// separated by NUL.
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

// Same compares values in their TOML form. For example, nan equals nan, and an int equals an int64.
func Same(a, b any) bool {
	textA, errA := toml.Marshal(map[string]any{"": a})
	textB, errB := toml.Marshal(map[string]any{"": b})
	return errA == nil && errB == nil && bytes.Equal(textA, textB)
}
