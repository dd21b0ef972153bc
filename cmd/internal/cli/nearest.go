// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
)

// DidYouMean returns the end of a message about an unknown word, with the most similar known word; "" if no known word
// is similar.
func DidYouMean(word string, known []string) string {
	const letters = 3 // one edit is allowed per three letters
	best := ""
	least := len(word) / letters
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least || d == least && best == "" {
			best = k
			least = d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance returns the number of edits between two words. An edit adds, removes, or replaces a letter, or swaps two
// adjacent letters.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := before
		before = row
		row = make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = min(before[j+1], row[j]) + 1
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], before[j])
			} else {
				row[j+1] = min(row[j+1], before[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], last[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
