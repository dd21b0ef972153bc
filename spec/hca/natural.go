// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"cmp"
	"strings"
)

// compareNatural orders names as people count: mlx5_2 before mlx5_10. It is a total order: two names compare equal only
// if they are the same.
func compareNatural(a, b string) int {
	x := a
	y := b
	for x != "" && y != "" {
		dx := digits(x)
		dy := digits(y)
		if dx == 0 || dy == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x = x[1:]
			y = y[1:]
			continue
		}
		// Compared as text, since a number in a name may be of any length.
		nx := strings.TrimLeft(x[:dx], "0")
		ny := strings.TrimLeft(y[:dy], "0")
		if c := cmp.Or(cmp.Compare(len(nx), len(ny)), cmp.Compare(nx, ny)); c != 0 {
			return c
		}
		x = x[dx:]
		y = y[dy:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// digits counts the decimal digits that s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// CompareNatural orders names, and texts with names in them, as people count.
func CompareNatural(a, b string) int { return compareNatural(a, b) }
